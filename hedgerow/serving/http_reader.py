"""Reads requests from a connection: heads of bounded length and time, bodies piece by piece."""

from __future__ import annotations

import socket
import time
from http.client import HTTPException

_PIECE_BYTES = 1 << 16
HEAD_BYTES = 1 << 16  # of a request's first line and headers; http.server takes 6.5 MB


class RequestReader:
    """Stands in for the file that http.server reads from. Belongs to one thread.

    A head may take `head_s` seconds from its first byte on, however slowly it comes; otherwise
    the connection may be silent for `idle_s`.
    """

    def __init__(self, connection: socket.socket, head_s: float, idle_s: float) -> None:
        self._connection, self._head_s, self._idle_s = connection, head_s, idle_s
        self._buffer = bytearray()
        self.begin()

    def begin(self) -> None:
        """The next line is the first of a request."""
        self._left = HEAD_BYTES + 1
        self._end_s: float | None = None
        self.unclear = False  # whether a line holds what others may read as two

    def readline(self, limit: int = HEAD_BYTES + 1) -> bytes:
        """A line of a head; cut where it is too long, empty where the client went away."""
        if self._left <= 0:
            raise HTTPException(f"more than {HEAD_BYTES} bytes before the body")
        most = min(limit, self._left)
        seen = 0
        while (end := self._buffer.find(b"\n", seen, most)) < 0 and len(self._buffer) < most:
            seen = len(self._buffer)
            if not self._receive():
                break
        line = self._take(end + 1 if end >= 0 else most)
        self._left -= len(line)
        inner = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        self.unclear = self.unclear or b"\r" in inner or b"\0" in inner
        return line

    def read1(self, most: int) -> bytes:
        """Some bytes of a body; none where the client went away."""
        self._left, self._end_s = 0, None
        if not self._buffer:
            self._receive()
        return self._take(most)

    def close(self) -> None:
        """Forgets what was read and not asked for."""
        self._buffer.clear()

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        if taken and self._left > 0 and self._end_s is None:
            self._end_s = time.monotonic() + self._head_s
        return taken

    def _receive(self) -> bool:
        """Whether more bytes came."""
        if self._buffer and self._left > 0 and self._end_s is None:
            self._end_s = time.monotonic() + self._head_s
        left_s = self._idle_s
        if self._end_s is not None:
            left_s = min(left_s, self._end_s - time.monotonic())
        if left_s <= 0:
            raise TimeoutError(f"the head of a request took more than {self._head_s} s")
        self._connection.settimeout(left_s)
        try:
            piece = self._connection.recv(_PIECE_BYTES)
        finally:
            self._connection.settimeout(self._idle_s)
        self._buffer += piece
        return bool(piece)
