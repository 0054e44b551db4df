"""Converts tensors to TensorProto messages and back, as raw content or as typed values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from torch import Tensor

from ..core.errors import DtypeError, InputError
from . import buffers, dtypes
from .buffers import Array
from .dtypes import ElementType
from .messages import tensor as pb

if TYPE_CHECKING:
    from .messages.tensor import TensorProto

Compat = Literal["typed"] | None


def to_message(
    value: Tensor | Array, *, compat: Compat = None, name: str = "tensor"
) -> TensorProto:
    """Returns a message with a tensor or an array; strings are arrays of str or bytes.

    Numbers are written as one raw buffer. `compat="typed"` writes typed values, which every
    reader accepts; some readers accept nothing else.

    >>> import torch
    >>> to_message(torch.tensor([1.0, 2.0])).tensor_content.hex()
    '0000803f00000040'
    >>> list(to_message(torch.tensor([1.0, 2.0]), compat="typed").float_val)
    [1.0, 2.0]
    """
    message = pb.TensorProto()
    fill(message, value, compat=compat, name=name)
    return message


def fill(
    message: TensorProto, value: Tensor | Array, *, compat: Compat = None, name: str = "tensor"
) -> None:
    """Writes a tensor into an empty message in place, with one copy less than to_message().

    >>> import torch
    >>> from hedgerow.wire.messages import tf_serving
    >>> request = tf_serving.PredictRequest()
    >>> fill(request.inputs["id"], torch.tensor([7]))
    >>> to_torch(request.inputs["id"])
    tensor([7])
    """
    check_compat(compat)
    message.tensor_shape.SetInParent()  # a scalar has a shape, which is empty
    if buffers.is_text(value):
        message.dtype = dtypes.STRING  # type: ignore[assignment]
        message.string_val.extend(buffers.flat_strings(name, value))  # type: ignore[arg-type]
    else:
        _write_numbers(message, name, value, compat)
    for size in value.shape:
        message.tensor_shape.dim.add(size=size)


def check_compat(compat: Compat) -> None:
    """Raises unless `compat` is None or "typed"."""
    if compat not in (None, "typed"):
        raise InputError(f"compat is {compat!r}; it must be None or 'typed'.")


def _write_numbers(message: TensorProto, name: str, value: Tensor | Array, compat: Compat) -> None:
    element, bits = buffers.flat_bits(name, value)
    message.dtype = element.number  # type: ignore[assignment]
    if compat is None:
        message.tensor_content = bits.tobytes()
    elif element.field == "float8_val":
        message.float8_val = bits.tobytes()
    elif element.parts == 2:
        buffers.append_numbers(message, element.field, bits.view(f"<f{element.width // 2}"))
    else:
        buffers.append_numbers(message, element.field, bits)


def to_torch(message: TensorProto, *, name: str = "tensor") -> Tensor:
    """Returns the tensor in a message; a large one is a view of the message's bytes.

    >>> import torch
    >>> to_torch(to_message(torch.tensor([[1, 2]])))
    tensor([[1, 2]])
    """
    if message.dtype == dtypes.STRING:
        raise DtypeError(f"{name} holds strings, which torch does not have; use to_numpy().")
    return buffers.as_torch(*_numbers(message, name))


def to_numpy(message: TensorProto, *, name: str = "tensor") -> Array:
    """Returns the array in a message, read-only if it is a view; strings as bytes objects.

    >>> import numpy as np
    >>> to_numpy(to_message(np.array(["é"], dtype=object)))
    array([b'\\xc3\\xa9'], dtype=object)
    """
    if message.dtype == dtypes.STRING:
        return _strings(message, name)
    return buffers.as_numpy(name, *_numbers(message, name))


def to_value(message: TensorProto, *, name: str = "tensor") -> Tensor | Array:
    """Returns a torch tensor of numbers, or a numpy array of bytes objects."""
    if message.dtype == dtypes.STRING:
        return _strings(message, name)
    return buffers.as_torch(*_numbers(message, name))


def _shape(message: TensorProto, name: str, width: int) -> tuple[tuple[int, ...], int]:
    shape = message.tensor_shape
    if shape.unknown_rank:
        raise InputError(f"{name} has a shape of unknown rank; send the sizes of its dimensions.")
    return buffers.checked_shape(name, [dim.size for dim in shape.dim], width)


def _numbers(message: TensorProto, name: str) -> tuple[ElementType, Array, tuple[int, ...]]:
    element = dtypes.of_number(message.dtype)
    shape, count = _shape(message, name, element.width)
    content = message.tensor_content
    if content:
        buffers.check_length(name, shape, count * element.width, len(content))
        bits = np.frombuffer(content, dtype=element.bits)
    else:
        bits = _fill(name, _typed(message, element, count), shape, count)
    return element, buffers.as_bools(bits) if element.name == "bool" else bits, shape


def _typed(message: TensorProto, element: ElementType, count: int) -> Array:
    """Returns at most `count` elements of the typed values; values are truncated to the dtype."""
    if element.field == "float8_val":
        return np.frombuffer(message.float8_val, dtype="u1")[:count]
    if element.parts == 2:
        half = buffers.read_numbers(message, element.field, f"<f{element.width // 2}", 2 * count)
        return half[: half.size // 2 * 2].view(element.bits)
    wide = {"int_val": "<i4", "half_val": "<i4", "bool_val": "?"}
    values = buffers.read_numbers(
        message, element.field, wide.get(element.field, element.bits), count
    )
    return values.astype(element.bits, copy=False)


def _fill(name: str, values: Array, shape: tuple[int, ...], count: int) -> Array:
    """Returns the values padded to `count` with the last value, or with zeros if there is none."""
    missing = count - values.size
    if not missing:
        return values
    buffers.check_repeated(name, shape, missing * values.itemsize)
    last = values[-1] if values.size else np.zeros((), dtype=values.dtype)
    return np.concatenate([values, np.full(missing, last, dtype=values.dtype)])


def _strings(message: TensorProto, name: str) -> Array:
    shape, count = _shape(message, name, 8)  # 8 bytes: the size of a pointer
    if message.tensor_content:
        raise InputError(f"{name} has strings in tensor_content; send them in string_val.")
    items = list(message.string_val[:count])
    missing = count - len(items)
    if missing:
        buffers.check_repeated(name, shape, missing * 8)
        items += [items[-1] if items else b""] * missing
    return buffers.as_strings(items, shape)
