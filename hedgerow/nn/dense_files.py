"""The dense part of a checkpoint: one safetensors file, which holds numbers and no code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import CheckpointError, InputError
from ..tables.checkpoint.files import check_plain
from ..tables.checkpoint.writer import Dense

# Types that every release of safetensors since 0.5 reads. Others are stored as bytes, with one more
# dimension, and `_TYPES` in the file's own metadata says what they are.
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_AS_BYTES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.complex32,
        torch.complex64,
        torch.complex128,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    )
}
_TYPES = "hedgerow types"
_PIECE_BYTES = 2**24


def dense_part(tensors: Mapping[str, Tensor]) -> Dense:
    """The file of these tensors, for a save to write.

    >>> dense_part({"a": torch.ones(2)}).file_bytes
    136
    """
    for name, tensor in tensors.items():
        _check(name, tensor)
    # Larger elements come first, so that every tensor begins at a multiple of its element's size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    entries: dict[str, Any] = {}
    types: dict[str, str] = {}
    end = 0
    for name, tensor in ordered:
        shape, word = list(tensor.shape), _NAMES.get(tensor.dtype)
        if word is None:
            types[name] = str(tensor.dtype).removeprefix("torch.")
            shape, word = [*shape, tensor.element_size()], "U8"
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": word, "shape": shape, "data_offsets": [start, end]}
    about = {"__metadata__": {"format": "pt", _TYPES: json.dumps(types)}}
    head = json.dumps(about | entries).encode()
    head += b" " * (-len(head) % 8)

    def write(out: Callable[[Any], object]) -> None:
        out(len(head).to_bytes(8, "little") + head)
        for _, tensor in ordered:
            for piece in _pieces(tensor):
                out(piece)

    return Dense(8 + len(head) + end, write)


def _check(name: str, tensor: Tensor) -> None:
    known = tensor.dtype in _NAMES or tensor.dtype in _AS_BYTES.values()
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    wrapped = hasattr(tensor, "__tensor_flatten__")  # DTensor, tensors of torchao
    if not known or not plain or wrapped or tensor.is_meta:
        raise InputError(
            f"{name} is a {type(tensor).__name__} of {tensor.dtype}, {tensor.layout}, on "
            f"{tensor.device}; a checkpoint holds plain dense tensors. Turn it into one, or leave "
            f"it out of the state."
        )


def _pieces(tensor: Tensor) -> Iterable[memoryview]:
    """The bytes of a tensor, some at a time."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    if not plain.numel():
        return
    view = plain.view(torch.uint8).numpy().data
    for start in range(0, len(view), _PIECE_BYTES):
        yield view[start : start + _PIECE_BYTES]


class DenseFile:
    """The tensors of a file whose checksum was proved; each is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        check_plain(path)
        self._path = path
        self._file: Any = self._parsed(lambda: safe_open(str(path), framework="pt"))
        self.names = frozenset(self._parsed(lambda: self._file.keys()))
        self._types = self._read_types()

    def tensor(self, name: str) -> Tensor:
        """A copy of one tensor."""
        if name not in self.names:
            raise CheckpointError(f"{self._path} lacks the tensor {name!r}; it is damaged.")
        found: Tensor = self._parsed(lambda: self._file.get_tensor(name).clone())
        if name in self._types:
            return self._parsed(lambda: _typed(found, self._types[name]))
        if found.dtype == torch.bool:  # a byte of a file may be neither 0 nor 1
            return found.view(torch.uint8).ne(0)
        return found

    def _read_types(self) -> dict[str, torch.dtype]:
        about = self._parsed(lambda: self._file.metadata()) or {}
        types = self._parsed(lambda: json.loads(about.get(_TYPES, "{}")))
        if not isinstance(types, dict) or not all(
            isinstance(word, str) and word in _AS_BYTES for word in types.values()
        ):
            raise CheckpointError(f"{self._path} names types of tensors that are none: {types!r}.")
        return {name: _AS_BYTES[word] for name, word in types.items()}

    def _parsed(self, read: Callable[[], Any]) -> Any:
        """What `read` gives; the file may hold anything, and the reader raise anything."""
        try:
            return read()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{self._path} is no readable safetensors file: {error}."
            ) from error


def _typed(found: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as the elements that they are."""
    if found.dtype != torch.uint8 or not found.shape or found.shape[-1] != dtype.itemsize:
        raise CheckpointError(
            f"bytes of shape {tuple(found.shape)} and type {found.dtype} are no {dtype}"
        )
    return found.reshape(-1).view(dtype).reshape(found.shape[:-1])


def check_shapes(
    where: object, saved: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Raises where a saved tensor has another shape than the model's."""
    for name, shape in shapes.items():
        if tuple(saved[name].shape) != tuple(shape):
            raise CheckpointError(
                f"{where} does not fit the model: {name} has the shape "
                f"{tuple(saved[name].shape)} ({math.prod(saved[name].shape)} numbers) in the "
                f"checkpoint, and {tuple(shape)} in the model."
            )
