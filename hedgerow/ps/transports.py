"""The two transports of a client: ZeroMQ, and a Unix socket with shared memory."""

from __future__ import annotations

import array
import os
import select
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ..core.errors import ConfigError
from .curve import ClientKeys
from .errors import FrameError
from .messages import (
    ANSWER,
    MAX_FRAME_BYTES,
    SMALL_BYTES,
    Buffer,
    behind_head,
    message,
    read_answer,
)
from .pending_requests import BufferReader
from .sockets import SocketPoller
from .unix_messages import (
    PACKET_BYTES,
    PRELUDE,
    ClientBlocks,
    Packet,
    SharedBlock,
    connected_socket,
    end_of,
    packet_of,
    read_packet,
    shared_packet,
    spans_of,
)

_ZMQ_BUFFER_BYTES = 2**22
_QUEUED_OUT = 256  # requests inside the socket; more wait outside
_BEATS = 5  # signs of life in the time after which a silent connection counts as lost
_CONNECT_MS = 5000  # for an address that does not even refuse
IN, OUT = 1, 2  # what a line can do


class TransportEvent(Enum):
    """What happened to the line."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"  # whatever the cause; the socket may not come back by itself
    BROKEN_OFF = "broken off"  # while greeting: a server that dies then, or keys that do not fit
    UNKNOWN_KEY = "unknown key"  # said by a server that knows its own
    REFUSED = "refused"  # one side has keys, the other has none
    ENDED = "ended"  # for good; another line is needed


@dataclass(slots=True, eq=False)
class ReceivedBuffers:
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


class ZmqTransport:
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
            (zmq.SNDBUF, _ZMQ_BUFFER_BYTES),
            (zmq.RCVBUF, _ZMQ_BUFFER_BYTES),
        ):
            socket.setsockopt(option, value)
        if keys is not None:
            keys.protect(socket)
        self._kinds: dict[int, TransportEvent] = {
            zmq.EVENT_HANDSHAKE_SUCCEEDED: TransportEvent.CONNECTED,
            zmq.EVENT_DISCONNECTED: TransportEvent.DISCONNECTED,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH: TransportEvent.UNKNOWN_KEY,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: TransportEvent.BROKEN_OFF,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: TransportEvent.BROKEN_OFF,
        }
        self._one_sided = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        self._monitor = socket.get_monitor_socket(sum(self._kinds))
        self._waiting = SocketPoller(socket, wake_fd, self._monitor)
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

    def events(self) -> Iterator[TransportEvent]:
        """What happened since the last time."""
        from zmq.utils.monitor import recv_monitor_message

        while self._monitor.poll(0):
            told = recv_monitor_message(self._monitor)
            failed = told["event"] == self._zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            one_sided = failed and told["value"] == self._one_sided
            yield TransportEvent.REFUSED if one_sided else self._kinds[told["event"]]

    def receive(self) -> tuple[Buffer, BufferReader] | None:
        """The head of the next answer and what follows it: in its frame, or in those that come."""
        try:
            head = self._socket.recv(self._now, copy=False)
        except self._zmq.Again:
            return None
        return head.buffer, self if head.more else ReceivedBuffers([behind_head(head.buffer)])

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


class UnixTransport:
    """A connection that ends with its server. Single-owner: whoever has the turn."""

    def __init__(self, connected: socket.socket, wake_fd: int) -> None:
        self._socket, self._wake_fd = connected, wake_fd
        self._fd = connected.fileno()
        self._blocks = ClientBlocks()
        self._room = memoryview(bytearray(PACKET_BYTES + 1))
        self._is_full = False  # the socket
        self._has_no_block = False
        self._ended = False
        self.was_heard = self.closed = False
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(wake_fd, select.POLLIN)

    # ---- out

    def send(
        self, sequence: int, head: Buffer, buffers: Sequence[Buffer], room_bytes: int, *, once: bool
    ) -> bool:
        """Whether a request went out. Raises `OSError` if memory cannot be shared."""
        lengths = list[int]()
        for buffer in buffers:
            lengths.append(memoryview(buffer).nbytes)
        if room_bytes <= SMALL_BYTES and len(head) + sum(lengths) <= PACKET_BYTES:
            return self._sent(packet_of(head, buffers))
        spans = spans_of(lengths)
        block = self._blocks.take(sequence, end_of(spans) + room_bytes, once=once)
        self._has_no_block = block is None
        if block is None:
            return False
        for span, buffer in zip(spans, buffers, strict=True):
            if span.stop > span.start:
                block.view[span] = memoryview(buffer).cast("B")
        if self._sent(shared_packet(head, block.number, spans), block):
            block.passed()
            return True
        self._blocks.give(sequence, again=block.fd < 0)
        return False

    def _sent(self, pieces: Sequence[Buffer], block: SharedBlock | None = None) -> bool:
        with_it = []
        if block is not None and block.fd >= 0:
            with_it = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [block.fd]))]
        try:
            self._socket.sendmsg(pieces, with_it)
        except BlockingIOError:
            self._is_full = True
            return False
        except OSError:  # the server is gone
            self._ended = True
            return False
        return True

    def release(self, sequence: int, *, answered: bool) -> None:
        """A request is done; `answered`: by the only server that was asked, and in full."""
        if self._blocks.lent:
            self._blocks.give(sequence, again=answered)
        self._has_no_block = False

    # ---- in

    def ready(self, *, send: bool) -> int:
        """What can be done without waiting, as far as it is known."""
        free = not (self._is_full or self._has_no_block or self._ended)
        return OUT if send and free else 0

    def poll(self, pause_ms: int, *, send: bool) -> tuple[int, bool, bool]:
        """What can be done, whether the line has ended, whether a sender woke us."""
        if self._ended:
            return 0, True, False
        if self._is_full:
            self._poll.modify(self._fd, select.POLLIN | select.POLLOUT)
        found, woken = 0, False
        for descriptor, what in self._poll.poll(pause_ms):
            if descriptor == self._wake_fd:
                os.eventfd_read(descriptor)
                woken = True
            elif what & ~select.POLLOUT:
                found |= IN
            if descriptor == self._fd and what & select.POLLOUT:
                self._is_full = False
                self._poll.modify(self._fd, select.POLLIN)
        return found | self.ready(send=send), False, woken

    def events(self) -> Iterator[TransportEvent]:
        """The end, if it is there."""
        if self._ended:
            yield TransportEvent.ENDED

    def receive(self) -> tuple[Buffer, BufferReader] | None:
        """The head of the next answer and what follows it."""
        try:
            length = self._socket.recv_into(self._room)
        except BlockingIOError:
            return None
        except OSError:
            length = 0
        if not length:
            self._ended = True
            return None
        self.was_heard = True
        packet = self._room[:length]
        if packet[:4] != PRELUDE:
            return packet, SharedBuffers([packet[ANSWER.size :]])
        try:
            found = read_packet(packet)
            return found.head, SharedBuffers(self._buffers(found))
        except FrameError:
            return b"", ReceivedBuffers([])  # a head that is refused

    def _buffers(self, found: Packet) -> list[memoryview]:
        """Those of an answer; none if they are in a block that its request has no longer."""
        if not found.block:
            return found.buffers
        block = self._blocks.of(read_answer(found.head)[0].sequence)
        if block is None or block.number != found.block:
            raise FrameError("an answer in memory that is not its own any more.")
        if found.spans and found.spans[-1].stop > len(block.view):
            raise FrameError("an answer beyond its memory.")
        return [block.view[span] for span in found.spans]

    def skip_rest(self) -> None:
        """Packets come whole."""

    def close(self) -> None:
        """Ends it; the memory goes when nobody holds it."""
        self.closed = True
        self._blocks.close()
        self._socket.close()


class SharedBuffers(ReceivedBuffers):
    """Buffers in memory that the next packet, or the next request, will use."""

    def frame(self) -> memoryview:
        """A copy of the next."""
        return memoryview(bytearray(super().frame()))


def connect_unix(address: str, wake_fd: int) -> UnixTransport | None:
    """The local way to a server, if there is one now."""
    found = connected_socket(address)
    return None if found is None else UnixTransport(found, wake_fd)
