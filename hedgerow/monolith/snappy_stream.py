"""Streams of Snappy blocks: four bytes of length, big-endian, then the block."""

from __future__ import annotations

from typing import Any, BinaryIO

from ..core.errors import FileDamagedError
from ..core.protobuf import Reader, WireError

_BLOCK_BYTES = 2**18  # of frames in a block we write; the original's input buffer
MAX_BLOCK_BYTES = 2**26  # compressed or not; more is damage, not data


def _codec() -> Any:
    from pyarrow import Codec

    return Codec("snappy")


class SnappyReader:
    """The bytes inside a stream of blocks. Not thread-safe.

    >>> import io
    >>> file = io.BytesIO()
    >>> writer = SnappyWriter(file)
    >>> writer.write(b"abc" * 10)
    >>> writer.finish()
    >>> SnappyReader(io.BytesIO(file.getvalue()), "demo").read(6)
    b'abcabc'
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name, self._codec = file, name, _codec()
        self._block, self._taken = b"", 0  # the block at hand and how much of it was given out
        self._at = 0

    def read(self, n: int) -> bytes:
        """The next `n` bytes; fewer only at the end."""
        parts: list[bytes] = []
        while n:
            part = self._block[self._taken : self._taken + n]
            if part:
                parts.append(part)
                self._taken += len(part)
                n -= len(part)
            elif not self._next_block():
                break
        return b"".join(parts)

    def _next_block(self) -> bool:
        head = self._file.read(4)
        if not head:
            return False
        length = int.from_bytes(head, "big")
        if len(head) < 4 or not 0 < length <= MAX_BLOCK_BYTES:
            raise self._damaged(f"a block of {length} bytes; 1 to {MAX_BLOCK_BYTES}")
        block = self._file.read(length)
        if len(block) < length:
            raise self._damaged(f"the file ends after {len(block)} of {length} bytes of a block")
        self._block, self._taken = self._decompressed(block), 0
        self._at += 4 + length
        return True

    def _decompressed(self, block: bytes) -> bytes:
        try:
            size = Reader(block[:10]).varint()  # a block starts with the size of its content
            if size > MAX_BLOCK_BYTES:
                raise self._damaged(f"a block that holds {size} bytes; at most {MAX_BLOCK_BYTES}")
            return self._codec.decompress(block, decompressed_size=size, asbytes=True)
        except (WireError, OSError) as error:
            raise self._damaged(f"no Snappy block ({error})") from error

    def _damaged(self, what: str) -> FileDamagedError:
        return FileDamagedError(
            f"{self._name} is damaged: {what} (block at byte {self._at}). Copy the file from its "
            f"source again; a table saved alone is not compressed."
        )


class SnappyWriter:
    """Writes bytes as blocks; `finish` writes the last one. Not thread-safe."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._codec = file, _codec()
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        """Adds bytes; a full block goes to the file."""
        self._waiting += data
        while len(self._waiting) >= _BLOCK_BYTES:
            self._write_block(bytes(self._waiting[:_BLOCK_BYTES]))
            del self._waiting[:_BLOCK_BYTES]

    def finish(self) -> None:
        """Writes what is left. The file stays open."""
        if self._waiting:
            self._write_block(bytes(self._waiting))
            self._waiting.clear()

    def _write_block(self, content: bytes) -> None:
        block = self._codec.compress(content, asbytes=True)
        self._file.write(len(block).to_bytes(4, "big") + block)
