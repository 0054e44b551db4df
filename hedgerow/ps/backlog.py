"""How many messages of one client wait inside the server's socket, and how a client is cut off."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

MOST_WAITING = 2**16
"""Messages of one client that may wait. A client of ours has a few requests under way."""
_LOOKS = 3  # in a row that find too many
_LOOK = 1024  # messages between two looks at the connections
_RECEIVED_AT = 128  # tcpi_bytes_received in Linux's struct tcp_info
_RECEIVED = struct.Struct("<Q")
_HEAD_BYTES, _LONG_HEAD_BYTES, _LONG = 2, 9, 255  # of a frame of ZeroMQ
_CURVE_BYTES = 33  # of a message that CURVE encrypts


class Backlog:
    """Finds a client whose messages come faster than they are read. Single-owner: the loop.

    It watches one client at a time: the system counts the bytes that came from it, the loop those
    that it has read. ZeroMQ's own limit would serve, but aborts the process, see `Server`.
    """

    def __init__(self, *, encrypted: bool) -> None:
        self.client: bytes | None = None  # the one that is watched
        self._extra = _CURVE_BYTES if encrypted else 0
        self._connection: socket.socket | None = None
        self._unwatched = self._messages = self._bytes = self._from = self._long = 0

    def is_due(self) -> bool:
        """Counts a message. True: the next client to be read is to be watched."""
        if self.client is not None:
            return False
        self._unwatched += 1
        return self._unwatched % _LOOK == 0

    def watch(self, client: bytes, descriptor: int) -> None:
        """Watches a client, by the connection that its message came through."""
        try:
            self._connection = socket.socket(fileno=os.dup(descriptor))
        except OSError:  # it is gone, its messages are still there
            return
        self._from = self._received()
        self.client, self._messages, self._bytes, self._long = client, 0, 0, 0
        if not self._from:
            self.forget()

    def is_too_long(self, frames: int, size: int) -> bool:
        """Counts a message of the watched client; whether more than `MOST_WAITING` wait behind it.

        One look may see a large message that is still on its way, so it takes several in a row. A
        client that has next to none waiting is watched no longer.
        """
        head = _HEAD_BYTES if size <= _LONG else _LONG_HEAD_BYTES
        self._messages += 1
        self._bytes += size + frames * (head + self._extra)
        if self._messages % _LOOK:
            return False
        ahead = self._received() - self._from - self._bytes
        waiting = ahead * self._messages // self._bytes
        if waiting < _LOOK:
            self.forget()
        self._long = self._long + 1 if waiting > MOST_WAITING else 0
        return self._long >= _LOOKS

    def cut_off(self) -> None:
        """Ends the connection of the watched client; ZeroMQ then lets it go."""
        if self._connection is not None:
            with suppress(OSError):  # it went by itself
                self._connection.shutdown(socket.SHUT_RDWR)
        self.forget()

    def forget(self) -> None:
        """Nothing waits, or the client is no longer watched."""
        if self._connection is not None:
            self._connection.close()
        self.client, self._connection, self._unwatched = None, None, 0

    def _received(self) -> int:
        """Bytes that came through the connection; 0 where the system does not say."""
        if self._connection is None:
            return 0
        try:
            size = _RECEIVED_AT + _RECEIVED.size
            found = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
        except OSError:
            return 0
        return _RECEIVED.unpack_from(found, _RECEIVED_AT)[0] if len(found) == size else 0
