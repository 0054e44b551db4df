"""Repeated numbers of a message as arrays, in one step where protobuf's own bytes allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.protobuf import BYTES, varint
from .buffers import Array

if TYPE_CHECKING:
    from .pool import Message

_MANY = 4096  # values of different lengths, from which on they are read all at once

def append(message: Message, field: str, values: Array) -> None:
    """Adds an array's values to a repeated field.

    Numbers of fixed width go in as one packed buffer: every parser takes those, for every field.
    """
    dtype = _fixed_dtype(message, field)
    if dtype is None:
        getattr(message, field).extend(values.tolist())
    elif values.size:
        payload = np.ascontiguousarray(values, dtype=dtype)
        number = message.DESCRIPTOR.fields_by_name[field].number
        head = varint(number << 3 | BYTES) + varint(payload.nbytes)
        message.MergeFromString(b"".join((head, payload.data)))


def read(message: Message, field: str, dtype: str, most: int) -> Array:
    """At most the first `most` values of a repeated field.

    >>> from hedgerow.wire.messages import tensor
    >>> read(tensor.TensorProto(int_val=[3, 4, 5]), "int_val", "<i4", 2)
    array([3, 4], dtype=int32)
    """
    values = getattr(message, field)
    count = min(len(values), most)
    fixed = _fixed_dtype(message, field)
    if fixed is not None and count:
        return _tail(message, field, fixed)[:count].astype(dtype, copy=False)
    if count > _MANY:
        return varints(_only(message, field), len(values))[:count].astype(dtype)
    return np.fromiter(values, dtype=dtype, count=count)


def varints(data: bytes, count: int) -> Array:
    """The numbers of a message's bytes that hold nothing but `count` of them, in one field.

    All at once: one by one they would take Python's lock for seconds, from all other threads.

    >>> varints(bytes.fromhex("520401ac02ff") + bytes.fromhex("ff" * 8 + "01"), 3).view("<i8")
    array([  1, 300,  -1])
    """
    plain = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(plain < 0x80)
    packed = data[0] & 7 == BYTES
    # Packed values follow the tag and the length; others each have a tag of one byte before them.
    begins = (ends[-count - 1 : -1] if packed else ends[-2 * count :: 2]) + 1
    ends = ends[-count:] if packed else ends[-2 * count + 1 :: 2]
    found = np.zeros(count, dtype=np.uint64)
    sizes = ends - begins
    for place in range(int(sizes.max()) + 1):
        longer = np.flatnonzero(sizes >= place)
        byte = plain[begins[longer] + place].astype(np.uint64) & np.uint64(0x7F)
        found[longer] |= byte << np.uint64(7 * place)
    return found


def _tail(message: Message, field: str, dtype: str) -> Array:
    """All values of a field of fixed width, cut from the bytes of a message that holds no other."""
    data, width = _only(message, field), np.dtype(dtype).itemsize
    if data[0] & 7 == BYTES:
        count = len(getattr(message, field))
        return np.frombuffer(data, dtype=dtype, offset=len(data) - width * count)
    tagged = np.dtype([("tag", "u1"), ("value", dtype)])  # our unpacked fields have small numbers
    return np.frombuffer(data, dtype=tagged)["value"]


def _only(message: Message, field: str) -> bytes:
    """The bytes of a message with one field alone."""
    alone = type(message)()
    alone.MergeFrom(message)  # the whole: the field alone may take each NaN through a float
    alone.DiscardUnknownFields()
    for described, _ in alone.ListFields():
        if described.name != field:
            alone.ClearField(described.name)
    return alone.SerializeToString()


def _fixed_dtype(message: Message, field: str) -> str | None:
    """How numpy reads a packed field; None where its values have different lengths."""
    described: Any = message.DESCRIPTOR.fields_by_name[field]
    names = {described.TYPE_FLOAT: "<f4", described.TYPE_DOUBLE: "<f8", described.TYPE_BOOL: "?"}
    return names.get(described.type)
