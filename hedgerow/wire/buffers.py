"""Converts tensors, arrays and strings to flat bytes and back; limits what a message may claim."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..core.errors import DtypeError, InputError
from ..core.hashing import field_seed
from ..core.protobuf import BYTES, varint
from . import dtypes
from .dtypes import ElementType

if TYPE_CHECKING:
    from .pool import Message


MAX_RANK = 32  # the limit of numpy 1; real tensors have fewer than ten dimensions
# A message of few bytes can claim a tensor of any size by leaving values out, so the omitted values
# are limited. 64 MiB is far more than recommenders send as one repeated value.
MAX_REPEATED_BYTES = 64 << 20
MAX_MESSAGE_BYTES = (1 << 31) - 1  # protobuf's own limit


def checked_shape(name: str, dims: Iterable[int], width: int) -> tuple[tuple[int, ...], int]:
    """Returns the shape and its number of elements; raises if a size is invalid.

    >>> checked_shape("x", [2, 3], 4)
    ((2, 3), 6)
    """
    shape = tuple(dims)
    if len(shape) > MAX_RANK:
        raise InputError(f"{name} has {len(shape)} dimensions; at most {MAX_RANK}: reshape it.")
    count, reach = 1, width  # a loop: this runs for every tensor of every request
    for size in shape:
        if size < 0:
            raise InputError(f"{name} has shape {shape}; a tensor's sizes are 0 or more, never -1.")
        count *= size
        reach *= size or 1
    if reach >= 1 << 63:
        raise InputError(
            f"{name} has shape {shape}, more bytes than addresses; send the shape of the values."
        )
    return shape, count


def check_length(name: str, shape: tuple[int, ...], expected: int, found: int) -> None:
    """Raises unless a buffer has exactly the bytes of its shape."""
    if found != expected:
        raise InputError(
            f"{name} of shape {shape} has a buffer of {found} bytes; it must be {expected}: "
            "send the whole row-major little-endian buffer."
        )


def check_repeated(name: str, shape: tuple[int, ...], size_bytes: int) -> None:
    """Raises if a message leaves out too many values."""
    if size_bytes > MAX_REPEATED_BYTES:
        raise InputError(
            f"{name} of shape {shape} leaves out values of {size_bytes} bytes; at most "
            f"{MAX_REPEATED_BYTES} are filled in: send all values."
        )


def check_sendable(name: str, size_bytes: int) -> None:
    """Raises if a buffer does not fit into a message."""
    if size_bytes > MAX_MESSAGE_BYTES:
        raise InputError(
            f"{name} has {size_bytes} bytes; a message holds at most {MAX_MESSAGE_BYTES}: "
            "send it in parts."
        )


Array = np.ndarray[Any, np.dtype[Any]]
_SMALL_BYTES = 16 << 10  # below this size a copy is faster than a view


def flat_bits(name: str, value: Tensor | Array) -> tuple[ElementType, Array]:
    """Returns the element type and, in row-major order, the bytes as a flat array of its `bits`."""
    if isinstance(value, Tensor):
        return _of_tensor(name, value)
    if not isinstance(value, np.ndarray):
        raise DtypeError(
            f"{name} is a {type(value).__name__}; pass a torch.Tensor or a numpy array, "
            "for example torch.tensor(...)."
        )
    element = dtypes.of_numpy(value.dtype)
    check_sendable(name, value.nbytes)
    native = value if element.numpy is None else value.astype(element.numpy, copy=False)
    return element, np.ascontiguousarray(native).reshape(-1).view(element.bits)


def _of_tensor(name: str, value: Tensor) -> tuple[ElementType, Array]:
    element = dtypes.of_torch(value.dtype)
    if element.numpy is not None and _is_plain(value):  # fast path: the usual output of servers
        bits = value.numpy() if element.is_plain else value.numpy().view(element.bits)
        check_sendable(name, bits.nbytes)
        return element, bits if bits.ndim == 1 else bits.reshape(-1)
    if value.layout != torch.strided:
        raise InputError(f"{name} has layout {value.layout}; pass {name}.to_dense().")
    if value.device.type == "meta":
        raise InputError(f"{name} is on the meta device, without values; pass a real tensor.")
    check_sendable(name, value.nbytes)
    plain = value.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
    if plain.stride(0) != 1:  # torch calls one element contiguous at any stride
        plain = plain.clone(memory_format=torch.contiguous_format)
    return element, plain.view(torch.uint8).numpy().view(element.bits)


def _is_plain(value: Tensor) -> bool:
    """Returns whether numpy can view a tensor's memory without a copy."""
    return (
        value.is_cpu
        and value.layout == torch.strided
        and value.is_contiguous()
        and not value.requires_grad
        and not value.is_conj()
        and not value.is_neg()
    )


def as_numpy(name: str, element: ElementType, bits: Array, shape: tuple[int, ...]) -> Array:
    """Returns a view of the bytes as an array."""
    if element.numpy is None:
        raise DtypeError(
            f"{name} has element type {element.name}, which numpy does not have; read it as a "
            "torch tensor."
        )
    return bits.view(element.numpy).reshape(shape)


def as_torch(element: ElementType, bits: Array, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor over the bytes. It may be writable: never write to it if they are shared."""
    if not bits.size:
        return torch.empty(shape, dtype=element.torch)
    if element.is_plain and bits.nbytes <= _SMALL_BYTES:  # fast path: the usual input of clients
        tensor = torch.from_numpy(bits.copy())
        return tensor if len(shape) == 1 else tensor.reshape(shape)
    plain = bits.view(np.uint8)
    if plain.flags.writeable:
        tensor = torch.from_numpy(plain)
    elif plain.nbytes <= _SMALL_BYTES or not bits.flags.aligned:
        tensor = torch.from_numpy(plain.copy())
    else:
        tensor = _over_read_only(plain)
    return tensor.view(element.torch).reshape(shape)


def _over_read_only(plain: Array) -> Tensor:
    """Returns a view of read-only bytes; only the reader of their message may hold them."""
    try:
        return torch.from_dlpack(plain)
    except (BufferError, TypeError):  # numpy before 2.1 exports no read-only arrays
        return torch.from_numpy(plain.copy())


def as_bools(bits: Array) -> Array:
    """Returns the bytes with every non-zero value as 1: another value would be an invalid bool."""
    return (bits != 0).view(np.uint8) if bits.size and bits.max() > 1 else bits


def is_text(value: object) -> bool:
    """Returns whether a value is an array of strings or bytes."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OSU"


def flat_strings(name: str, value: Array) -> list[bytes]:
    """Returns the strings of an array in row-major order, as UTF-8."""
    found = [item.encode() if isinstance(item, str) else item for item in value.reshape(-1)]
    wrong = next((item for item in found if not isinstance(item, bytes)), None)
    if wrong is not None:
        raise DtypeError(f"{name} holds {wrong!r}; an array of objects may hold bytes and str.")
    return found


def as_strings(items: list[bytes], shape: tuple[int, ...]) -> Array:
    """Returns an array of bytes objects (torch has no strings)."""
    found = np.empty(len(items), dtype=object)
    found[:] = items
    return found.reshape(shape)


_MANY = 1 << 15  # numbers read in one step, which holds the GIL


def append_numbers(message: Message, field: str, values: Array) -> None:
    """Adds an array's values to a repeated field.

    Numbers of fixed width are added as one packed buffer, which every parser accepts.
    """
    dtype = _fixed_dtype(message, field)
    if dtype is None:
        getattr(message, field).extend(values.tolist())
    elif values.size:
        payload = np.ascontiguousarray(values, dtype=dtype)
        number = message.DESCRIPTOR.fields_by_name[field].number
        head = varint(number << 3 | BYTES) + varint(payload.nbytes)
        message.MergeFromString(b"".join((head, payload.data)))


def read_numbers(message: Message, field: str, dtype: str, most: int) -> Array:
    """Returns at most the first `most` values of a repeated field.

    >>> from hedgerow.wire.messages import tensor
    >>> read_numbers(tensor.TensorProto(int_val=[3, 4, 5]), "int_val", "<i4", 2)
    array([3, 4], dtype=int32)
    """
    values = getattr(message, field)
    count = min(len(values), most)
    fixed = _fixed_dtype(message, field)
    if fixed is not None and count:
        return _tail(message, field, fixed)[:count].astype(dtype, copy=False)
    if count <= _MANY:
        return np.fromiter(values, dtype=dtype, count=count)
    found, rest = np.empty(count, dtype=dtype), iter(values)
    for begin in range(0, count, _MANY):
        size = min(_MANY, count - begin)
        found[begin : begin + size] = np.fromiter(islice(rest, size), dtype=dtype, count=size)
    return found


def _tail(message: Message, field: str, dtype: str) -> Array:
    """Returns all values of a field of fixed width, cut from the bytes of a copy with only it."""
    alone = type(message)()
    alone.MergeFrom(message)  # the whole message: a field's own API could change NaN bits
    alone.DiscardUnknownFields()
    for described, _ in alone.ListFields():
        if described.name != field:
            alone.ClearField(described.name)
    data, width = alone.SerializeToString(), np.dtype(dtype).itemsize
    if data[0] & 7 == BYTES:
        count = len(getattr(message, field))
        return np.frombuffer(data, dtype=dtype, offset=len(data) - width * count)
    tagged = np.dtype([("tag", "u1"), ("value", dtype)])  # field numbers here take one byte
    return np.frombuffer(data, dtype=tagged)["value"]


def _fixed_dtype(message: Message, field: str) -> str | None:
    """Returns the numpy dtype of a packed field; None if its values have variable length."""
    described: Any = message.DESCRIPTOR.fields_by_name[field]
    names = {described.TYPE_FLOAT: "<f4", described.TYPE_DOUBLE: "<f8", described.TYPE_BOOL: "?"}
    return names.get(described.type)


def ids_of_text(strings: Array, field: str) -> Tensor:
    """Returns `hr.id64(value, field)` of every value of an array of str or bytes, in its shape.

    >>> ids_of_text(np.array(["Zürich"], dtype=object), "city")
    tensor([795450140219139997])
    """
    flat = [one.encode() if isinstance(one, str) else one for one in strings.ravel().tolist()]
    out = np.empty(len(flat), np.uint64)
    if flat:
        data = np.frombuffer(b"".join(flat) or b"\0", np.uint8)
        offsets = np.zeros(len(flat) + 1, np.int64)
        np.cumsum([len(one) for one in flat], out=offsets[1:])
        seed = field_seed(field)
        native.hash_strings(data.ctypes.data, offsets.ctypes.data, len(out), seed, out.ctypes.data)
    return torch.from_numpy(out.view(np.int64)).reshape(strings.shape)
