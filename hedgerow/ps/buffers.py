"""Tensors over the buffers of messages and back, without copies, and the narrow wire formats."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.shapes import Float32
from .errors import FrameError
from .frames import MAX_FRAME_BYTES, MAX_TEXT_BYTES, Buffer

WIRES: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)
_NUMPY = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(np.int16),  # numpy has no such type; the bits travel
    torch.int64: np.dtype(np.int64),
    torch.int8: np.dtype(np.int8),
    torch.bool: np.dtype(np.bool_),
}


def wire_code(dtype: torch.dtype) -> int:
    """The number of a wire format.

    >>> wire_code(torch.bfloat16)
    2
    """
    if dtype not in WIRES:
        raise InputError(f"wire is {dtype}; rows travel as {', '.join(map(str, WIRES))}.")
    return WIRES.index(dtype)


def tensor_over(frame: Buffer, dtype: torch.dtype, count: int, what: str) -> Tensor:
    """The buffer as `count` values; a copy only where it lies across the borders of a word.

    >>> tensor_over(bytearray(16), torch.int64, 2, "ids").tolist()
    [0, 0]
    """
    kind = _NUMPY[dtype]
    view = memoryview(frame)
    if view.nbytes != count * kind.itemsize:
        raise FrameError(f"{view.nbytes} bytes of {what}; {count} values have other lengths.")
    array = np.frombuffer(view, kind)
    if not array.flags.behaved:  # aligned, and torch may believe that it can write
        array = array.copy()
    found = torch.from_numpy(array)
    return found.view(torch.bfloat16) if dtype == torch.bfloat16 else found


def buffer_of(tensor: Tensor) -> Buffer:
    """The memory of a contiguous tensor, which stays as it is while the buffer is held."""
    plain = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return plain.numpy().data.cast("B") if tensor.numel() else b""


def address_of(buffer: Buffer) -> int:
    """Where a buffer lies in memory."""
    return np.frombuffer(buffer, np.uint8).ctypes.data


def narrowed(rows: Float32[Tensor, "floats"], wire: int) -> Tensor:
    """Rows as they travel."""
    return rows.to(WIRES[wire]) if wire else rows


def widened(frame: Buffer, wire: int, count: int, what: str) -> Float32[Tensor, "floats"]:
    """Rows as they arrived, as float32; over the buffer itself if they travelled so."""
    found = tensor_over(frame, WIRES[wire], count, what)
    return found.float() if wire else found


def float_bytes(wire: int) -> int:
    """Bytes of one value on its way."""
    return WIRES[wire].itemsize


def check_room(floats: int, wire: int) -> None:
    """Refuses rows that fit no message; of requests, since answers come in parts."""
    if floats * float_bytes(wire) > MAX_FRAME_BYTES:
        raise InputError(
            f"{floats} values in one request; at most {MAX_FRAME_BYTES // float_bytes(wire)} of "
            f"{WIRES[wire]} ({MAX_FRAME_BYTES} bytes). Split the batch."
        )


def text_of(value: object) -> bytes:
    """A value as JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def value_of(frame: Buffer) -> Any:
    """The value of a JSON buffer."""
    view = memoryview(frame)
    if view.nbytes > MAX_TEXT_BYTES:
        raise FrameError(f"{view.nbytes} bytes of text; at most {MAX_TEXT_BYTES}.")
    try:
        return json.loads(bytes(view))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a text that is no JSON: {error}.") from error
