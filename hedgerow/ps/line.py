"""The ZeroMQ socket of a client: its settings, what happens to it, and the frames that pass."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ..core.errors import ConfigError
from .curve import ClientKeys
from .errors import FrameError
from .frames import MAX_FRAME_BYTES, Buffer, behind_head, message
from .tickets import Reader
from .waiting import Waiting

_SOCKET_BYTES = 2**22
_QUEUED_OUT = 256  # requests inside the socket; more wait outside
_BEATS = 5  # signs of life in the time after which a silent connection counts as lost
_CONNECT_MS = 5000  # for an address that does not even refuse
IN, OUT = 1, 2  # what a line can do


class Event(Enum):
    """What happened to the line."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"  # whatever the cause; the socket may not come back by itself
    BROKEN_OFF = "broken off"  # while greeting: a server that dies then, or keys that do not fit
    UNKNOWN_KEY = "unknown key"  # said by a server that knows its own
    REFUSED = "refused"  # one side has keys, the other has none
    ENDED = "ended"  # for good; another line is needed


@dataclass(slots=True, eq=False)
class Behind:
    """Buffers that came together with their head."""

    buffers: list[memoryview]

    def into(self, room: memoryview) -> int:
        """Copies the next into its place; its length."""
        if not self.buffers:
            raise _lacks_a_buffer()
        buffer = self.buffers.pop(0)
        taken = len(buffer)
        if taken > len(room):
            raise FrameError(f"{taken} bytes of rows where {len(room)} were asked for.")
        if taken:  # no room at all is read-only
            room[:taken] = buffer
        return taken

    def frame(self) -> memoryview:
        """The next as it is."""
        if not self.buffers:
            raise _lacks_a_buffer()
        return self.buffers.pop(0)


def _lacks_a_buffer() -> FrameError:
    return FrameError("an answer that lacks a buffer.")


class Line:
    """A DEALER socket. Single-owner: whoever has the turn."""

    was_heard = True  # it comes back by itself

    def __init__(
        self, address: str, keys: ClientKeys | None, wake_fd: int, *, silent_s: float
    ) -> None:
        import zmq

        self._zmq, self._address = zmq, address
        self.closed = False  # set by `close`
        self._wake_fd = wake_fd
        silent_ms = max(int(1000 * silent_s), _BEATS)
        # The context of the process: one thread serves the sockets to all servers.
        socket = self._socket = zmq.Context.instance().socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),  # nothing queues up for a server that is away
            (zmq.RCVHWM, 0),  # the requests under way bound it
            (zmq.SNDHWM, _QUEUED_OUT),
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
            (zmq.RECONNECT_IVL, 20),
            (zmq.RECONNECT_IVL_MAX, 500),
            (zmq.CONNECT_TIMEOUT, _CONNECT_MS),
            (zmq.HANDSHAKE_IVL, silent_ms),
            (zmq.HEARTBEAT_IVL, silent_ms // _BEATS),
            (zmq.HEARTBEAT_TIMEOUT, silent_ms),
            (zmq.SNDBUF, _SOCKET_BYTES),
            (zmq.RCVBUF, _SOCKET_BYTES),
        ):
            socket.setsockopt(option, value)
        if keys is not None:
            keys.protect(socket)
        self._kinds: dict[int, Event] = {
            zmq.EVENT_HANDSHAKE_SUCCEEDED: Event.CONNECTED,
            zmq.EVENT_DISCONNECTED: Event.DISCONNECTED,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH: Event.UNKNOWN_KEY,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Event.BROKEN_OFF,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Event.BROKEN_OFF,
        }
        self._one_sided = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        self._monitor = socket.get_monitor_socket(sum(self._kinds))
        self._waiting = Waiting(socket, wake_fd, self._monitor)
        self._waiting.has_input(self._monitor)  # else its first event would wake no thread
        self._events, self._rcvmore = int(zmq.EVENTS), int(zmq.RCVMORE)
        self._more, self._now = int(zmq.SNDMORE), int(zmq.NOBLOCK)

    def connect(self) -> None:
        """Goes to the server; until then the line waits. Once."""
        try:
            self._socket.connect(self._address)
        except self._zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"the address of a server is {self._address!r}: {error.strerror}. Write host:port."
            ) from error

    def send(
        self, sequence: int, head: Buffer, buffers: Sequence[Buffer], room_bytes: int, *, once: bool
    ) -> bool:
        """Whether a request went out: the server may be away, or more queued than the socket takes.

        Only lines that share memory care for who asks, for what, and how often.
        """
        first, *rest = message(head, buffers)
        try:
            self._socket.send(first, self._more | self._now if rest else self._now)
            for left, frame in enumerate(rest, 1 - len(rest)):
                self._socket.send(frame, self._more if left else 0, copy=False)
        except self._zmq.Again:
            return False
        return True

    def release(self, sequence: int, *, answered: bool) -> None:
        """A request is done; nothing of it is kept here."""

    def ready(self, *, send: bool) -> int:
        """What the socket can do now."""
        return self._socket.getsockopt(self._events) & (IN | OUT if send else IN)

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
            told = recv_monitor_message(self._monitor)
            failed = told["event"] == self._zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            one_sided = failed and told["value"] == self._one_sided
            yield Event.REFUSED if one_sided else self._kinds[told["event"]]

    def receive(self) -> tuple[Buffer, Reader] | None:
        """The head of the next answer and what follows it: in its frame, or in those that come."""
        try:
            head = self._socket.recv(self._now, copy=False)
        except self._zmq.Again:
            return None
        return head.buffer, self if head.more else Behind([behind_head(head.buffer)])

    def skip_rest(self) -> None:
        """Leaves nothing of a message in the socket."""
        while self._socket.getsockopt(self._rcvmore):
            self._socket.recv(copy=False)

    def into(self, room: memoryview) -> int:
        """The next buffer of a message, copied once into its place; its length."""
        self._check_more()
        if not room:
            return len(self._socket.recv())
        taken = self._socket.recv_into(room)
        if taken > len(room):
            raise FrameError(f"{taken} bytes of rows where {len(room)} were asked for.")
        return taken

    def frame(self) -> Buffer:
        """The next buffer of a message as it lies in the socket's memory."""
        self._check_more()
        return self._socket.recv(copy=False).buffer

    def _check_more(self) -> None:
        if not self._socket.getsockopt(self._rcvmore):
            raise _lacks_a_buffer()

    def close(self) -> None:
        """Ends it; what was not sent is dropped."""
        self.closed = True
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
