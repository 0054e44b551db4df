"""Waits for several sockets, shares a socket between threads, and finds clients that send too much.

The file descriptor of a ZeroMQ socket reports each change of its state once. A thread must read the
socket's `EVENTS` before and after it waits for the descriptor.
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
    """Waits for ZeroMQ sockets and plain descriptors. Single-owner, as its sockets are."""

    def __init__(self, *sources: Any) -> None:
        import zmq

        self._events, self._in = int(zmq.EVENTS), int(zmq.POLLIN)
        self._poll = select.poll()
        for source in sources:
            known = isinstance(source, int)
            self._poll.register(source if known else source.getsockopt(zmq.FD), select.POLLIN)

    def watch(self, descriptor: int, what: int) -> None:
        """Adds a plain descriptor, or changes the events that are awaited on it."""
        self._poll.register(descriptor, what)

    def forget(self, descriptor: int) -> None:
        """Removes a descriptor. Does nothing if it is not watched."""
        try:
            self._poll.unregister(descriptor)
        except (KeyError, ValueError):  # it was closed, or never watched
            return

    def wait(self, pause_ms: int | None = None) -> list[tuple[int, int]]:
        """Returns the changed descriptors with their events; empty after `pause_ms`."""
        return self._poll.poll(pause_ms)

    def has_input(self, socket: Any) -> bool:
        """Whether a socket has something to read."""
        return bool(socket.getsockopt(self._events) & self._in)


class Awaited(Protocol):
    """An object that a reader waits for. Another reader may complete it."""

    done: bool


class SocketOwnership:
    """A lock for a socket, in which senders go before readers. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self.senders = 0  # threads that wait to send
        self._waiting = 0  # threads that wait for a change
        self.reader_waits = False  # in a poll, which `wake_fd` ends; the reader clears it
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def take(self) -> None:
        """Waits for the socket in order to send, and takes it."""
        with self._changed:
            self.senders += 1
            if self.reader_waits:
                os.eventfd_write(self.wake_fd, 1)
            while self._taken:
                self._wait()
            self.senders -= 1
            self._taken = True

    def take_to_read(self, awaited: Awaited) -> bool:
        """Waits for the socket in order to read.

        Returns False if another reader completed `awaited`.
        """
        with self._changed:
            while not awaited.done and (self._taken or self.senders):
                self._wait()
            if awaited.done:
                return False
            self._taken = True
            return True

    def end(self) -> None:
        """Releases the socket."""
        with self._changed:
            self._taken = False
            if self._waiting:  # usually none waits, and this check is cheaper than a notify
                self._changed.notify_all()

    def close(self) -> None:
        """Closes the wake descriptor. No thread may wait afterwards."""
        os.close(self.wake_fd)

    def tell(self) -> None:
        """Wakes the waiting threads because an awaited object may be complete."""
        with self._changed:
            self._changed.notify_all()

    def _wait(self) -> None:
        self._waiting += 1
        try:
            self._changed.wait()
        finally:
            self._waiting -= 1


MOST_WAITING = 2**16
"""Messages of one client that may wait. A normal client has a few requests in flight."""
_LOOKS = 3  # checks in a row that must find too many messages
_LOOK = 1024  # messages between two checks
_RECEIVED_AT = 128  # tcpi_bytes_received in Linux's struct tcp_info
_RECEIVED = struct.Struct("<Q")
_HEAD_BYTES, _LONG_HEAD_BYTES, _LONG = 2, 9, 255  # header sizes of a ZeroMQ frame
_CURVE_BYTES = 33  # overhead of a message that CURVE encrypts


class Backlog:
    """Finds a client whose messages arrive faster than they are read. Single-owner: the loop.

    It watches one client at a time and compares the bytes that the system received from the client
    with the bytes that the loop has read. ZeroMQ's own limit is not used, because it can abort the
    process; see `_QUEUED_IN` in `server`.
    """

    def __init__(self, *, encrypted: bool) -> None:
        self.client: bytes | None = None  # the watched client
        self._extra = _CURVE_BYTES if encrypted else 0
        self._connection: socket.socket | None = None
        self._unwatched = self._messages = self._bytes = self._from = self._long = 0

    def is_due(self) -> bool:
        """Counts a message. Returns whether the client of the next message must be watched."""
        if self.client is not None:
            return False
        self._unwatched += 1
        return self._unwatched % _LOOK == 0

    def watch(self, client: bytes, descriptor: int) -> None:
        """Watches a client through the connection of its message."""
        try:
            self._connection = socket.socket(fileno=os.dup(descriptor))
        except OSError:  # the connection is gone, but messages are still queued
            return
        self._from = self._received()
        self.client, self._messages, self._bytes, self._long = client, 0, 0, 0
        if not self._from:
            self.forget()

    def is_too_long(self, frames: int, size: int) -> bool:
        """Counts a message of the watched client. Returns whether more than `MOST_WAITING` wait.

        A single check may count a large message that is still arriving, so several checks in a row
        must agree. A client with almost no waiting messages is no longer watched.
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
        """Shuts down the connection of the watched client. ZeroMQ then drops the client."""
        if self._connection is not None:
            with suppress(OSError):  # it is closed already
                self._connection.shutdown(socket.SHUT_RDWR)
        self.forget()

    def forget(self) -> None:
        """Stops watching the client."""
        if self._connection is not None:
            self._connection.close()
        self.client, self._connection, self._unwatched = None, None, 0

    def _received(self) -> int:
        """Returns the bytes received on the connection, or 0 if the system does not report them."""
        if self._connection is None:
            return 0
        try:
            size = _RECEIVED_AT + _RECEIVED.size
            found = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
        except OSError:
            return 0
        return _RECEIVED.unpack_from(found, _RECEIVED_AT)[0] if len(found) == size else 0
