"""One saved row: the message EntryDump and its bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    Floats,
    Reader,
    bytes_field,
    floats_field,
    sfixed64_field,
    varint_field,
)
from .optimizer_dump import Dump, decode_dumps

_ID, _VALUES, _OPTIMIZER, _TIME = 1, 2, 3, 4
NO_VALUES = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class EntryDump:
    """A row as it stands in a file. An absent time is 0, as is an absent id (protobuf's rule)."""

    id: int
    values: Floats
    dumps: tuple[Dump, ...]
    ts: int


def decode_entry(payload: bytes) -> EntryDump:
    """Reads one message; unknown fields are skipped, floats may be packed or not.

    >>> decode_entry(encode_entry(7, np.ones(2, np.float32), b"", 5)).ts
    5
    """
    key, ts = 0, 0
    values: list[Floats] = []
    optimizer: list[bytes] = []
    reader = Reader(payload)
    for number, wire_type in reader.fields():
        if number == _VALUES:
            values.append(reader.floats(number, wire_type))
        elif number == _ID:
            reader.expect(number, wire_type, FIXED64)
            key = reader.sfixed64()
        elif number == _TIME:
            reader.expect(number, wire_type, VARINT)
            ts = reader.int64()
        elif number == _OPTIMIZER:
            reader.expect(number, wire_type, BYTES)
            optimizer.append(reader.bytes())  # several are one: protobuf merges messages
        else:
            reader.skip(number, wire_type)
    row = values[0] if len(values) == 1 else np.concatenate([NO_VALUES, *values])
    return EntryDump(key, row, decode_dumps(b"".join(optimizer)), ts)


def encode_entry(key: int, values: Floats, optimizer: bytes, ts: int) -> bytes:
    """Writes one message; `optimizer` holds the fields of its OptimizerDump.

    >>> encode_entry(1, np.zeros(1, np.float32), b"", 2).hex()
    '09010000000000000015000000001a002002'
    """
    return b"".join(
        (
            sfixed64_field(_ID, key),
            floats_field(_VALUES, values),
            bytes_field(_OPTIMIZER, optimizer),
            varint_field(_TIME, ts),
        )
    )
