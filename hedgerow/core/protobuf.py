"""The wire format of protobuf messages: a strict reader, and writers of single fields."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .errors import HedgerowError

Floats = NDArray[np.float32]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which are obsolete
_FLOAT_FIELD = np.dtype([("tag", "u1"), ("value", "<f4")])
_LARGEST_FIELD = 2**29 - 1


class WireError(HedgerowError, ValueError):
    """Bytes are not a valid message. The text names the byte offset."""


class ProtobufReader:
    """Reads one message field by field. Not thread-safe.

    >>> reader = ProtobufReader(varint_field(4, 150))
    >>> [(number, reader.varint()) for number, _ in reader.fields()]
    [(4, 150)]
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._end = len(data)
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yields the number and wire type of each field.

        The caller must then read or skip its value.
        """
        while self._at < self._end:
            start = self._at
            tag = self.varint()
            number, wire_type = tag >> 3, tag & 7
            if not 1 <= number <= _LARGEST_FIELD:
                raise WireError(f"field number {number} at byte {start}; 1 to {_LARGEST_FIELD}")
            yield number, wire_type

    @property
    def at(self) -> int:
        """The number of bytes read so far."""
        return self._at

    def varint(self) -> int:
        """Reads an unsigned number of at most 64 bits."""
        value, start = 0, self._at
        for shift in range(0, 70, 7):
            if self._at >= self._end:
                raise WireError(f"the number at byte {start} is cut off")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 2**64:
                    break
                return value
        raise WireError(f"the number at byte {start} is longer than 64 bits")

    def int64(self) -> int:
        """Reads a signed number that is stored as an unsigned 64-bit varint."""
        value = self.varint()
        return value - 2**64 if value >= 2**63 else value

    def int64s(self) -> list[int]:
        """Reads signed numbers up to the end, as in a packed field.

        >>> ProtobufReader(varint(3) + varint(-1)).int64s()
        [3, -1]
        """
        found = []
        while self._at < self._end:
            found.append(self.int64())
        return found

    def sfixed64(self) -> int:
        """Reads a signed number of 8 bytes."""
        (value,) = struct.unpack("<q", self._take(8))
        return value

    def bytes(self) -> bytes:
        """Reads a length and that many bytes: a string, a message or packed numbers."""
        return self._take(self.varint())

    def floats(self, number: int, wire_type: int) -> Floats:
        """Reads one or more values of a repeated float field whose tag was just read.

        Unpacked values are consecutive fields of five bytes each. A run of them is read at once,
        which keeps files of many rows fast to read.
        """
        if wire_type == BYTES:
            start, packed = self._at, self.bytes()
            if len(packed) % 4:
                raise WireError(f"{len(packed)} bytes of floats at byte {start}; not 4 per value")
            return np.frombuffer(packed, "<f4")
        if wire_type != FIXED32:
            self.refuse(number, wire_type)
        start = self._at - 1
        if self._data[start] != number << 3 | FIXED32:  # a tag of several bytes
            return np.frombuffer(self._take(4), "<f4")
        tags = self._data[start : self._end : 5]
        run = len(tags) - len(tags.lstrip(tags[:1]))
        run = max(1, min(run, (self._end - start) // 5))
        self._at = start
        return np.frombuffer(self._take(5 * run), _FLOAT_FIELD)["value"]

    def expect(self, number: int, wire_type: int, wanted: int) -> None:
        """Raises `WireError` if `wire_type` is not `wanted`."""
        if wire_type != wanted:
            self.refuse(number, wire_type)

    def refuse(self, number: int, wire_type: int) -> None:
        """Raises `WireError` for a known field with a wrong wire type."""
        raise WireError(f"field {number} before byte {self._at} has wire type {wire_type}")

    def skip(self, number: int, wire_type: int) -> None:
        """Skips the value of an unknown field."""
        if wire_type == VARINT:
            self.varint()
        elif wire_type == BYTES:
            self.bytes()
        elif wire_type in (FIXED64, FIXED32):
            self._take(8 if wire_type == FIXED64 else 4)
        else:
            self.refuse(number, wire_type)

    def _take(self, n: int) -> bytes:
        # Lengths are checked before anything is copied, so a wrong length allocates no memory.
        if n > self._end - self._at:
            raise WireError(f"{n} bytes wanted at byte {self._at}, {self._end - self._at} left")
        self._at += n
        return self._data[self._at - n : self._at]


def varint(value: int) -> bytes:
    """Returns the varint encoding of a number. A negative number is encoded as its 64 bits.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_field(number: int, value: int) -> bytes:
    """Returns an int64 field.

    >>> varint_field(1, 5).hex()
    '0805'
    """
    return varint(number << 3 | VARINT) + varint(value)


def sfixed64_field(number: int, value: int) -> bytes:
    """Returns a field with a signed number of 8 bytes.

    >>> sfixed64_field(1, -1).hex()
    '09ffffffffffffffff'
    """
    return varint(number << 3 | FIXED64) + struct.pack("<q", value)


def double_field(number: int, value: float) -> bytes:
    """Returns a field with a float of 8 bytes.

    >>> double_field(1, 1.0).hex()
    '09000000000000f03f'
    """
    return varint(number << 3 | FIXED64) + struct.pack("<d", value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Returns a field with a string, bytes or a message.

    >>> bytes_field(2, b"hi")
    b'\\x12\\x02hi'
    """
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def floats_field(number: int, values: Floats) -> bytes:
    """Returns a repeated float field, unpacked: each value has its own tag, as Monolith writes it.

    `number` must be below 16.

    >>> floats_field(2, np.ones(2, np.float32)).hex()
    '150000803f150000803f'
    """
    fields = np.empty(values.shape, _FLOAT_FIELD)
    fields["tag"] = number << 3 | FIXED32
    fields["value"] = values
    return fields.tobytes()
