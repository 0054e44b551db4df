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
_QUEUED_OUT = 256  # requests queued in the socket; more wait in the connection
_BEATS = 5  # heartbeats in the time after which a silent connection is lost
_CONNECT_MS = 5000  # for an address that does not answer at all
IN, OUT = 1, 2  # a transport is ready to receive, to send


class TransportEvent(Enum):
    """An event of a transport."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"  # for any cause; the socket may not reconnect by itself
    BROKEN_OFF = "broken off"  # during the handshake: the server died, or the keys are wrong
    UNKNOWN_KEY = "unknown key"  # the server does not accept the client's key
    REFUSED = "refused"  # only one side has keys
    ENDED = "ended"  # the transport cannot reconnect


@dataclass(slots=True, eq=False)
class ReceivedBuffers:
    """Buffers that arrived together with their head."""

    buffers: list[memoryview]

    def into(self, room: memoryview) -> int:
        """Copies the next buffer into `room` and returns its length."""
        if not self.buffers:
            raise _lacks_a_buffer()
        buffer = self.buffers.pop(0)
        taken = len(buffer)
        if taken > len(room):
            raise FrameError(f"{taken} bytes of rows where {len(room)} were asked for.")
        if taken:  # an empty `room` may be read-only
            room[:taken] = buffer
        return taken

    def frame(self) -> memoryview:
        """Returns the next buffer without a copy."""
        if not self.buffers:
            raise _lacks_a_buffer()
        return self.buffers.pop(0)


def _lacks_a_buffer() -> FrameError:
    return FrameError("an answer that lacks a buffer.")


class ZmqTransport:
    """A ZeroMQ DEALER socket. Single-owner: the thread that owns the socket."""

    was_heard = True  # of no use here, because ZeroMQ reconnects by itself

    def __init__(
        self, address: str, keys: ClientKeys | None, wake_fd: int, *, silent_s: float
    ) -> None:
        import zmq

        self._zmq, self._address = zmq, address
        self.closed = False  # set by `close`
        self._wake_fd = wake_fd
        silent_ms = max(int(1000 * silent_s), _BEATS)
        # The shared context of the process: one I/O thread serves the sockets to all servers.
        socket = self._socket = zmq.Context.instance().socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),  # queue nothing for a server that is not connected
            (zmq.RCVHWM, 0),  # bounded by the requests in flight
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
        self._waiting.has_input(self._monitor)  # without this its first event wakes no thread
        self._events, self._rcvmore = int(zmq.EVENTS), int(zmq.RCVMORE)
        self._more, self._now = int(zmq.SNDMORE), int(zmq.NOBLOCK)

    def connect(self) -> None:
        """Connects to the server. Called once; nothing is sent before."""
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
        """Sends a request. Returns False if the server is not connected or the queue is full.

        Only `UnixTransport` uses `sequence`, `room_bytes` and `once`.
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
        """Does nothing: this transport keeps no state of a request."""

    def ready(self, *, send: bool) -> int:
        """Returns what the socket is ready for: `IN`, `OUT`, both or neither."""
        return self._socket.getsockopt(self._events) & (IN | OUT if send else IN)

    def poll(self, pause_ms: int, *, send: bool) -> tuple[int, bool, bool]:
        """Waits, then returns what the socket is ready for, and two flags.

        The flags say whether there are events and whether a sender woke this thread. The caller has
        checked that the socket is not `ready`.
        """
        changed = self._waiting.wait(pause_ms)
        if not changed:
            return 0, False, False
        woken = any(descriptor == self._wake_fd for descriptor, _ in changed)
        if woken:
            os.eventfd_read(self._wake_fd)
        return self.ready(send=send), self._waiting.has_input(self._monitor), woken

    def events(self) -> Iterator[TransportEvent]:
        """Yields the events since the last call."""
        from zmq.utils.monitor import recv_monitor_message

        while self._monitor.poll(0):
            told = recv_monitor_message(self._monitor)
            failed = told["event"] == self._zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            one_sided = failed and told["value"] == self._one_sided
            yield TransportEvent.REFUSED if one_sided else self._kinds[told["event"]]

    def receive(self) -> tuple[Buffer, BufferReader] | None:
        """Returns the head of the next answer and a reader of its buffers, or None."""
        try:
            head = self._socket.recv(self._now, copy=False)
        except self._zmq.Again:
            return None
        return head.buffer, self if head.more else ReceivedBuffers([behind_head(head.buffer)])

    def skip_rest(self) -> None:
        """Discards the unread frames of a message."""
        while self._socket.getsockopt(self._rcvmore):
            self._socket.recv(copy=False)

    def into(self, room: memoryview) -> int:
        """Receives the next buffer of a message into `room` and returns its length."""
        self._check_more()
        if not room:
            return len(self._socket.recv())
        taken = self._socket.recv_into(room)
        if taken > len(room):
            raise FrameError(f"{taken} bytes of rows where {len(room)} were asked for.")
        return taken

    def frame(self) -> Buffer:
        """Returns the next buffer of a message in the socket's memory."""
        self._check_more()
        return self._socket.recv(copy=False).buffer

    def _check_more(self) -> None:
        if not self._socket.getsockopt(self._rcvmore):
            raise _lacks_a_buffer()

    def close(self) -> None:
        """Closes the socket. Unsent requests are dropped."""
        self.closed = True
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()


class UnixTransport:
    """A Unix socket with shared memory, to one server process.

    It does not reconnect. Single-owner: the thread that owns the socket.
    """

    def __init__(self, connected: socket.socket, wake_fd: int) -> None:
        self._socket, self._wake_fd = connected, wake_fd
        self._fd = connected.fileno()
        self._blocks = ClientBlocks()
        self._room = memoryview(bytearray(PACKET_BYTES + 1))
        self._is_full = False  # whether the socket accepts no packet
        self._has_no_block = False
        self._ended = False
        self.was_heard = self.closed = False
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(wake_fd, select.POLLIN)

    # ---- sending

    def send(
        self, sequence: int, head: Buffer, buffers: Sequence[Buffer], room_bytes: int, *, once: bool
    ) -> bool:
        """Sends a request and returns whether it was sent.

        Raises `OSError` if memory cannot be shared.
        """
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
        """Frees the shared memory of a finished request.

        `answered` is false if the server may still use the memory.
        """
        if self._blocks.lent:
            self._blocks.give(sequence, again=answered)
        self._has_no_block = False

    # ---- receiving

    def ready(self, *, send: bool) -> int:
        """Returns `OUT` if a packet can probably be sent, else 0."""
        free = not (self._is_full or self._has_no_block or self._ended)
        return OUT if send and free else 0

    def poll(self, pause_ms: int, *, send: bool) -> tuple[int, bool, bool]:
        """Waits, then returns what the socket is ready for, and two flags.

        The flags say whether the connection ended and whether a sender woke this thread.
        """
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
        """Yields `ENDED` if the connection has ended."""
        if self._ended:
            yield TransportEvent.ENDED

    def receive(self) -> tuple[Buffer, BufferReader] | None:
        """Returns the head of the next answer and a reader of its buffers, or None."""
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
            return b"", ReceivedBuffers([])  # an invalid head, which the reader rejects

    def _buffers(self, found: Packet) -> list[memoryview]:
        """Returns the buffers of an answer.

        Raises if its request does not use their block any more.
        """
        if not found.block:
            return found.buffers
        block = self._blocks.of(read_answer(found.head)[0].sequence)
        if block is None or block.number != found.block:
            raise FrameError("an answer in a shared block that its request no longer uses.")
        if found.spans and found.spans[-1].stop > len(block.view):
            raise FrameError("an answer beyond the end of its shared block.")
        return [block.view[span] for span in found.spans]

    def skip_rest(self) -> None:
        """Does nothing, because packets arrive whole."""

    def close(self) -> None:
        """Closes the socket. Shared memory is freed when its last user is done."""
        self.closed = True
        self._blocks.close()
        self._socket.close()


class SharedBuffers(ReceivedBuffers):
    """Buffers in memory that the next packet or the next request reuses."""

    def frame(self) -> memoryview:
        """Returns a copy of the next buffer."""
        return memoryview(bytearray(super().frame()))


def connect_unix(address: str, wake_fd: int) -> UnixTransport | None:
    """Returns a transport to a server on this machine, or None if there is none."""
    found = connected_socket(address)
    return None if found is None else UnixTransport(found, wake_fd)
