"""The socket of a client: its settings, what happens to it, and the frames that arrive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum
from typing import Any

from ..core.errors import ConfigError
from .curve import ClientKeys
from .errors import FrameError
from .frames import MAX_FRAME_BYTES, Buffer, behind_head
from .nearby import nearest
from .tickets import Reader
from .waiting import Waiting

_SOCKET_BYTES = 2**22
_QUEUED_OUT = 256  # requests inside the socket; more wait outside


class Event(Enum):
    """What happened to the line."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    REFUSED = "refused"


class Behind:
    """The one buffer that came in the frame of its head."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer: memoryview | None = buffer

    def into(self, room: memoryview) -> int:
        """Copies it into its place; its length."""
        buffer = self.frame()
        taken = len(buffer)
        if taken > len(room):
            raise FrameError(f"{taken} bytes of rows where {len(room)} were asked for.")
        if taken:  # no room at all is read-only
            room[:taken] = buffer
        return taken

    def frame(self) -> memoryview:
        """As it is."""
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            raise FrameError("an answer that lacks a buffer.")
        return buffer


class Line:
    """A DEALER socket. Single-owner: whoever has the turn."""

    def __init__(self, address: str, keys: ClientKeys | None, wake_fd: int) -> None:
        import zmq

        self.zmq = zmq
        self._wake_fd = wake_fd
        # The context of the process: one thread serves the sockets to all servers.
        socket = self.socket = zmq.Context.instance().socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),  # nothing queues up for a server that is away
            (zmq.RCVHWM, 0),  # the requests under way bound it
            (zmq.SNDHWM, _QUEUED_OUT),
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
            (zmq.RECONNECT_IVL, 20),
            (zmq.RECONNECT_IVL_MAX, 500),
            (zmq.SNDBUF, _SOCKET_BYTES),
            (zmq.RCVBUF, _SOCKET_BYTES),
        ):
            socket.setsockopt(option, value)
        if keys is not None:
            keys.protect(socket)
        self._kinds: dict[int, Event] = {
            zmq.EVENT_HANDSHAKE_SUCCEEDED: Event.CONNECTED,
            zmq.EVENT_DISCONNECTED: Event.DISCONNECTED,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH: Event.REFUSED,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Event.REFUSED,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Event.REFUSED,
        }
        self._monitor = socket.get_monitor_socket(sum(self._kinds))
        try:
            socket.connect(nearest(address))
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"the address of a server is {address!r}: {error.strerror}. Write host:port."
            ) from error
        self._waiting = Waiting(socket, wake_fd, self._monitor)
        self._events, self._in = int(zmq.EVENTS), int(zmq.POLLIN)
        self._both = int(zmq.POLLIN | zmq.POLLOUT)

    def ready(self, *, send: bool) -> int:
        """What the socket can do now."""
        return self.socket.getsockopt(self._events) & (self._both if send else self._in)

    def poll(self, pause_ms: int, *, send: bool) -> tuple[int, bool, bool]:
        """What the socket can do, whether something happened to it, whether a sender woke us.

        Waits if there is nothing; the caller has seen that the socket is not `ready`.
        """
        changed = self._waiting.wait(pause_ms)
        if not changed:
            return 0, False, False
        woken = any(descriptor == self._wake_fd for descriptor, _ in changed)
        if woken:
            os.eventfd_read(self._wake_fd)
        return self.ready(send=send), self._waiting.has_input(self._monitor), woken

    def events(self) -> Iterator[Event]:
        """What happened since the last time."""
        from zmq.utils.monitor import recv_monitor_message

        while self._monitor.poll(0):
            yield self._kinds[recv_monitor_message(self._monitor)["event"]]

    def rest(self, head: Any) -> Reader:
        """What follows a head: in the same frame if it is small, else in those that come."""
        return self if head.more else Behind(behind_head(head.buffer))

    def skip_rest(self, head: Any) -> None:
        """Leaves nothing of a message in the socket."""
        while head.more and self.socket.getsockopt(self.zmq.RCVMORE):
            self.socket.recv(copy=False)

    def into(self, room: memoryview) -> int:
        """The next buffer of a message, copied once into its place; its length."""
        self._check_more()
        if not room:
            return len(self.socket.recv())
        taken = self.socket.recv_into(room)
        if taken > len(room):
            raise FrameError(f"{taken} bytes of rows where {len(room)} were asked for.")
        return taken

    def frame(self) -> Buffer:
        """The next buffer of a message as it lies in the socket's memory."""
        self._check_more()
        return self.socket.recv(copy=False).buffer

    def _check_more(self) -> None:
        if not self.socket.getsockopt(self.zmq.RCVMORE):
            raise FrameError("an answer that lacks a buffer.")

    def close(self) -> None:
        """Ends it; what was not sent is dropped."""
        self.socket.disable_monitor()
        self._monitor.close()
        self.socket.close()
