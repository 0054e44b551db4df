"""Waiting for several sockets, sharing a socket between threads, and clients that send too much.

The file descriptor of a ZeroMQ socket reports each change of its state once. Before a thread waits
for it, and again afterwards, the thread must read the socket's `EVENTS`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from contextlib import suppress
from typing import Any, Protocol


class SocketPoller:
    """Waits for any of some sockets and plain descriptors. Single-owner, as its sockets are."""

    def __init__(self, *sources: Any) -> None:
        import zmq

        self._events, self._in = int(zmq.EVENTS), int(zmq.POLLIN)
        self._poll = select.poll()
        for source in sources:
            known = isinstance(source, int)
            self._poll.register(source if known else source.getsockopt(zmq.FD), select.POLLIN)

    def watch(self, descriptor: int, what: int) -> None:
        """Waits for a plain descriptor, too, or for something else on it."""
        self._poll.register(descriptor, what)

    def forget(self, descriptor: int) -> None:
        """Waits for it no more, if it did."""
        try:
            self._poll.unregister(descriptor)
        except (KeyError, ValueError):  # it was closed, or never watched
            return

    def wait(self, pause_ms: int | None = None) -> list[tuple[int, int]]:
        """Descriptors on which something changed, each with what; none after so many ms."""
        return self._poll.poll(pause_ms)

    def has_input(self, socket: Any) -> bool:
        """Whether a socket has something to read."""
        return bool(socket.getsockopt(self._events) & self._in)


class Awaited(Protocol):
    """What a reader waits for; another reader may find it for him."""

    done: bool


class SocketOwnership:
    """Senders go first: one who reads, and so waits long, stands aside for them. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self.senders = 0  # that wait for their turn
        self._waiting = 0  # threads that wait for a change
        self.reader_waits = False  # in a poll, which `wake_fd` ends; the reader takes it back
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def take(self) -> None:
        """The turn of a sender, as soon as nobody has it."""
        with self._changed:
            self.senders += 1
            if self.reader_waits:
                os.eventfd_write(self.wake_fd, 1)
            while self._taken:
                self._wait()
            self.senders -= 1
            self._taken = True

    def take_to_read(self, awaited: Awaited) -> bool:
        """The turn of a reader; False if another one has found what he waits for."""
        with self._changed:
            while not awaited.done and (self._taken or self.senders):
                self._wait()
            if awaited.done:
                return False
            self._taken = True
            return True

    def end(self) -> None:
        """Gives the turn to another."""
        with self._changed:
            self._taken = False
            if self._waiting:  # most of the time none does, and to ask takes less than to notify
                self._changed.notify_all()

    def close(self) -> None:
        """Nobody will wait any more."""
        os.close(self.wake_fd)

    def tell(self) -> None:
        """Something was found that others may wait for."""
        with self._changed:
            self._changed.notify_all()

    def _wait(self) -> None:
        self._waiting += 1
        try:
            self._changed.wait()
        finally:
            self._waiting -= 1


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
