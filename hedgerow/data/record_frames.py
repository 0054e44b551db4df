"""Record files: frames of a length, its checksum, the payload and the payload's checksum."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from .. import native
from ..core.errors import FileDamagedError

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_HEAD_BYTES = _LENGTH.size + _CRC.size
# A row of the widest table with four states takes 2 MiB; a length beyond this is damage, and must
# not be allocated before its payload is seen.
MAX_PAYLOAD_BYTES = 2**26


class ByteSource(Protocol):
    """What frames are read from."""

    def read(self, n: int, /) -> bytes:
        """The next `n` bytes; fewer only at the end."""
        ...


def masked_crc(data: bytes) -> int:
    """The checksum as frames hold it: rotated and shifted, so that checksums of checksums differ.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    crc = native.crc32c(np.frombuffer(data, np.uint8).ctypes.data, len(data), 0) if data else 0
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """One frame.

    >>> len(frame(b"abc"))
    19
    """
    length = _LENGTH.pack(len(payload))
    return b"".join(
        (length, _CRC.pack(masked_crc(length)), payload, _CRC.pack(masked_crc(payload)))
    )


def payloads(source: ByteSource, name: str) -> Iterator[tuple[int, bytes]]:
    """Every payload with the byte its frame starts at; `name` is the file's, for errors.

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
                name, at, f"the file ends {length + _CRC.size - len(body)} bytes before the record"
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
