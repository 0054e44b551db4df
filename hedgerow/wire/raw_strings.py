"""Strings in one buffer, each after its length in four bytes: KServe's raw form of BYTES."""

from __future__ import annotations

import struct

from ..core.errors import InputError

_LENGTH = struct.Struct("<I")


def join(items: list[bytes]) -> bytes:
    """The strings in one buffer.

    >>> join([b"ab", b""]).hex()
    '02000000616200000000'
    """
    return b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))


def cut(name: str, data: bytes) -> list[bytes]:
    """The strings of a buffer.

    >>> cut("words", bytes.fromhex("02000000616200000000"))
    [b'ab', b'']
    """
    items, place = [], 0
    while place < len(data):
        begin = place + _LENGTH.size
        end = begin + _LENGTH.unpack_from(data, place)[0] if begin <= len(data) else begin
        if end > len(data):
            raise InputError(
                f"{name} ends at byte {len(data)} inside a string that begins at {place}; "
                "each string stands after its length in four little-endian bytes."
            )
        items.append(data[begin:end])
        place = end
    return items
