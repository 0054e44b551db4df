"""The message tf.Example: named lists of bytes, floats or whole numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.protobuf import BYTES, Floats, Reader, WireError, bytes_field, varint

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
Values = list[bytes] | Floats | list[int]


def decode_example(data: bytes) -> dict[str, Values]:
    """Every feature that has a list, by name.

    >>> decode_example(encode_example({"user": [7, 8]}))
    {'user': [7, 8]}
    """
    found: dict[str, Values] = {}
    for features in _messages(data, 1):
        for entry in _messages(features, 1):
            name, feature = _entry(entry)
            values = _values(feature)
            if values is not None:
                found[name] = values
    return found


def _messages(data: bytes, wanted: int) -> list[bytes]:
    """The contents of every field `wanted`, which is a message or text."""
    reader, found = Reader(data), []
    for number, wire_type in reader.fields():
        if number == wanted:
            reader.expect(number, wire_type, BYTES)
            found.append(reader.bytes())
        else:
            reader.skip(number, wire_type)
    return found


def _entry(data: bytes) -> tuple[str, bytes]:
    name, feature, reader = b"", b"", Reader(data)
    for number, wire_type in reader.fields():
        if number == 1:
            reader.expect(number, wire_type, BYTES)
            name = reader.bytes()
        elif number == 2:
            reader.expect(number, wire_type, BYTES)
            feature = reader.bytes()
        else:
            reader.skip(number, wire_type)
    try:
        return name.decode(), feature
    except UnicodeDecodeError as error:
        raise WireError(f"the feature name {name!r} is not UTF-8") from error


def _values(data: bytes) -> Values | None:
    """The list of a feature; the last one counts where a writer put several."""
    found: Values | None = None
    reader = Reader(data)
    for number, wire_type in reader.fields():
        if number not in (_BYTES_LIST, _FLOAT_LIST, _INT64_LIST):
            reader.skip(number, wire_type)
            continue
        reader.expect(number, wire_type, BYTES)
        inner = reader.bytes()
        if number == _BYTES_LIST:
            found = _messages(inner, 1)
        elif number == _FLOAT_LIST:
            found = _floats(inner)
        else:
            found = _int64s(inner)
    return found


def _floats(data: bytes) -> Floats:
    reader, found = Reader(data), [np.empty(0, np.float32)]
    for number, wire_type in reader.fields():
        if number == 1:
            found.append(reader.floats(number, wire_type))
        else:
            reader.skip(number, wire_type)
    return np.concatenate(found)


def _int64s(data: bytes) -> list[int]:
    reader, found = Reader(data), []
    for number, wire_type in reader.fields():
        if number == 1 and wire_type == BYTES:
            found.extend(Reader(reader.bytes()).int64s())
        elif number == 1 and wire_type == 0:
            found.append(reader.int64())
        elif number == 1:
            reader.refuse(number, wire_type)
        else:
            reader.skip(number, wire_type)
    return found


def encode_example(
    features: Mapping[str, Sequence[int] | Sequence[float] | Sequence[bytes] | NDArray[np.float32]],
) -> bytes:
    """An example of whole numbers, floats or bytes a feature, as TensorFlow writes it.

    >>> encode_example({"a": [1]}).hex()
    '0a0c0a0a0a016112051a030a0101'
    """
    entries = []
    for name, values in features.items():
        first = values[0] if len(values) else 0
        if isinstance(first, bytes):
            kind, body = _BYTES_LIST, b"".join(bytes_field(1, v) for v in values)  # pyright: ignore[reportArgumentType]
        elif isinstance(first, float | np.floating):
            kind, body = _FLOAT_LIST, bytes_field(1, np.asarray(values, "<f4").tobytes())
        else:
            kind, body = _INT64_LIST, bytes_field(1, b"".join(varint(int(v)) for v in values))
        entries.append(
            bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, bytes_field(kind, body)))
        )
    return bytes_field(1, b"".join(entries))
