"""Named tensors in a file of the safetensors format: a JSON header and plain bytes, no code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.errors import DtypeError, FileDamagedError

# The words of the format, and the types of torch.
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_WORDS = {dtype: word for word, dtype in _DTYPES.items()}
_MOST_HEADER_BYTES = 100_000_000  # as the format says
_MOST_DIMS = 64


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a file with these tensors.

    >>> read_tensors(tensor_bytes({"w": torch.ones(2)}), "weights")
    {'w': tensor([1., 1.])}
    """
    header: dict[str, Any] = {}
    parts, at = [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _WORDS:
            raise DtypeError(f"{name} is {tensor.dtype}, which no file of weights holds.")
        dense = tensor.detach().cpu().contiguous()
        part = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        header[name] = {
            "dtype": _WORDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(part)],
        }
        parts.append(part)
        at += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that values begin at a multiple of their size
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def read_tensors(data: bytes | bytearray, what: str) -> dict[str, Tensor]:
    """The tensors in the bytes of a file, each checked; `what` is what errors call the file."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _MOST_HEADER_BYTES):
        raise FileDamagedError(f"{what} is cut off: it has no whole header.")
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
    except (ValueError, RecursionError) as error:
        raise FileDamagedError(f"{what} has a header that is no JSON: {error}.") from error
    if not isinstance(header, dict):
        raise FileDamagedError(f"{what} has a header that is no JSON object.")
    header.pop("__metadata__", None)
    values = bytearray(memoryview(data)[8 + size :])  # memory that the tensors may write to
    found, end = {}, 0
    for name, entry in header.items():
        found[name], end = _tensor(values, entry, end, f"{what}, {name!r}")
    if end != len(values):
        raise FileDamagedError(f"{what} holds {len(values)} bytes of values; its header {end}.")
    return found


def _tensor(values: bytearray, entry: Any, begin: int, what: str) -> tuple[Tensor, int]:
    """One tensor, whose bytes follow those of the one before; and where they end."""
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise FileDamagedError(f"{what} must have dtype, shape and data_offsets.")
    dtype, shape, span = _word(entry["dtype"]), entry["shape"], entry["data_offsets"]
    for sizes in (shape, span):
        if not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes):
            raise FileDamagedError(f"{what} has a shape or offsets that are no whole numbers.")
    if dtype is None or len(shape) > _MOST_DIMS:
        raise FileDamagedError(f"{what} has an unknown dtype or too many dimensions.")
    end = begin + math.prod(shape) * dtype.itemsize
    if span != [begin, end] or end > len(values):
        raise FileDamagedError(f"{what} has offsets {span}; its shape needs {[begin, end]}.")
    if begin == end:
        return torch.zeros(shape, dtype=dtype), end
    flat = torch.frombuffer(values, dtype=torch.uint8, count=end - begin, offset=begin)
    if begin % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).view(shape), end


def _word(word: object) -> torch.dtype | None:
    return _DTYPES.get(word) if isinstance(word, str) else None
