"""Repeated numbers of a message as arrays, in one step where protobuf's own bytes allow it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.protobuf import BYTES, varint
from .buffers import Array

if TYPE_CHECKING:
    from .pool import Message

_MANY = 1 << 15  # numbers read in one step: Python's lock is held meanwhile, from all threads


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
    if count <= _MANY:
        return np.fromiter(values, dtype=dtype, count=count)
    found, rest = np.empty(count, dtype=dtype), iter(values)
    for begin in range(0, count, _MANY):
        size = min(_MANY, count - begin)
        found[begin : begin + size] = np.fromiter(islice(rest, size), dtype=dtype, count=size)
    return found


def _tail(message: Message, field: str, dtype: str) -> Array:
    """All values of a field of fixed width, cut from the bytes of a message that holds no other."""
    alone = type(message)()
    alone.MergeFrom(message)  # the whole: the field alone may take each NaN through a float
    alone.DiscardUnknownFields()
    for described, _ in alone.ListFields():
        if described.name != field:
            alone.ClearField(described.name)
    data, width = alone.SerializeToString(), np.dtype(dtype).itemsize
    if data[0] & 7 == BYTES:
        count = len(getattr(message, field))
        return np.frombuffer(data, dtype=dtype, offset=len(data) - width * count)
    tagged = np.dtype([("tag", "u1"), ("value", dtype)])  # our unpacked fields have small numbers
    return np.frombuffer(data, dtype=tagged)["value"]


def _fixed_dtype(message: Message, field: str) -> str | None:
    """How numpy reads a packed field; None where its values have different lengths."""
    described: Any = message.DESCRIPTOR.fields_by_name[field]
    names = {described.TYPE_FLOAT: "<f4", described.TYPE_DOUBLE: "<f8", described.TYPE_BOOL: "?"}
    return names.get(described.type)
