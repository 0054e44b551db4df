"""The formats of TFRecord files: framed records, and the message tf.Example."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..core.errors import FileDamagedError
from ..core.protobuf import BYTES, Floats, ProtobufReader, WireError, bytes_field, varint

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_HEAD_BYTES = _LENGTH.size + _CRC.size
# A row of the widest table with four states takes 2 MiB. A length beyond this limit means damage,
# and must not be allocated.
MAX_PAYLOAD_BYTES = 2**26


class ByteSource(Protocol):
    """A source of bytes for `payloads`."""

    def read(self, n: int, /) -> bytes:
        """Returns the next `n` bytes; fewer only at the end."""
        ...


def masked_crc(data: bytes) -> int:
    """Returns the checksum as frames hold it: rotated, plus a constant.

    The masking suits data that itself contains checksums.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    crc = native.crc32c(np.frombuffer(data, np.uint8).ctypes.data, len(data), 0) if data else 0
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Returns a payload as one frame.

    >>> len(frame(b"abc"))
    19
    """
    length = _LENGTH.pack(len(payload))
    return b"".join(
        (length, _CRC.pack(masked_crc(length)), payload, _CRC.pack(masked_crc(payload)))
    )


def payloads(source: ByteSource, name: str) -> Iterator[tuple[int, bytes]]:
    """Yields every payload with the offset of its frame. `name` is the file name in errors.

    >>> import io
    >>> list(payloads(io.BytesIO(frame(b"abc") + frame(b"")), "demo"))
    [(0, b'abc'), (19, b'')]
    """
    at = 0
    while head := source.read(_HEAD_BYTES):
        if len(head) < _HEAD_BYTES:
            raise _damaged(name, at, f"the file ends after {len(head)} of {_HEAD_BYTES} bytes")
        (length,), (crc,) = _LENGTH.unpack_from(head), _CRC.unpack_from(head, _LENGTH.size)
        if masked_crc(head[: _LENGTH.size]) != crc:
            raise _damaged(name, at, "the length does not have its checksum")
        if length > MAX_PAYLOAD_BYTES:
            raise _damaged(name, at, f"a length of {length}; at most {MAX_PAYLOAD_BYTES}")
        body = source.read(length + _CRC.size)
        if len(body) < length + _CRC.size:
            raise _damaged(
                name, at, f"the file ends {length + _CRC.size - len(body)} bytes too early"
            )
        payload = body[:length]
        if masked_crc(payload) != _CRC.unpack_from(body, length)[0]:
            raise _damaged(name, at, "the payload does not have its checksum")
        yield at, payload
        at += _HEAD_BYTES + length + _CRC.size


def _damaged(name: str, at: int, what: str) -> FileDamagedError:
    return FileDamagedError(
        f"{name} is damaged: {what} (record at byte {at}). Copy the file from its source again."
    )


_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
Values = list[bytes] | Floats | list[int]


def decode_example(data: bytes) -> dict[str, Values]:
    """Returns every feature that has a list, by name.

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
    """Returns the contents of every field number `wanted`, which must be a message or text."""
    reader, found = ProtobufReader(data), []
    for number, wire_type in reader.fields():
        if number == wanted:
            reader.expect(number, wire_type, BYTES)
            found.append(reader.bytes())
        else:
            reader.skip(number, wire_type)
    return found


def _entry(data: bytes) -> tuple[str, bytes]:
    name, feature, reader = b"", b"", ProtobufReader(data)
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
    """Returns the list of a feature. If there are several lists, the last one is used."""
    found: Values | None = None
    reader = ProtobufReader(data)
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
    reader, found = ProtobufReader(data), [np.empty(0, np.float32)]
    for number, wire_type in reader.fields():
        if number == 1:
            found.append(reader.floats(number, wire_type))
        else:
            reader.skip(number, wire_type)
    return np.concatenate(found)


def _int64s(data: bytes) -> list[int]:
    reader, found = ProtobufReader(data), []
    for number, wire_type in reader.fields():
        if number == 1 and wire_type == BYTES:
            found.extend(ProtobufReader(reader.bytes()).int64s())
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
    """Returns an example with integers, floats or bytes per feature, as TensorFlow writes it.

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
