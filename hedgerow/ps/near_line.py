"""The local socket of a client: packets out and in, large buffers in shared memory."""

from __future__ import annotations

import array
import os
import select
import socket
from collections.abc import Iterator, Sequence

from .blocks import Block, Blocks
from .errors import FrameError
from .frames import ANSWER, SMALL_BYTES, Buffer, read_answer
from .line import IN, OUT, Behind, Event
from .nearby import connect_nearby
from .packets import (
    PACKET_BYTES,
    PRELUDE,
    Packet,
    end_of,
    packet_of,
    read_packet,
    shared_packet,
    spans_of,
)
from .tickets import Reader


class NearLine:
    """A connection that ends with its server. Single-owner: whoever has the turn."""

    def __init__(self, connected: socket.socket, wake_fd: int) -> None:
        self._socket, self._wake_fd = connected, wake_fd
        self._fd = connected.fileno()
        self._blocks = Blocks()
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

    def _sent(self, pieces: Sequence[Buffer], block: Block | None = None) -> bool:
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

    def events(self) -> Iterator[Event]:
        """The end, if it is there."""
        if self._ended:
            yield Event.ENDED

    def receive(self) -> tuple[Buffer, Reader] | None:
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
            return packet, Passing([packet[ANSWER.size :]])
        try:
            found = read_packet(packet)
            return found.head, Passing(self._buffers(found))
        except FrameError:
            return b"", Behind([])  # a head that is refused

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


class Passing(Behind):
    """Buffers in memory that the next packet, or the next request, will use."""

    def frame(self) -> memoryview:
        """A copy of the next."""
        return memoryview(bytearray(super().frame()))


def near_line(address: str, wake_fd: int) -> NearLine | None:
    """The local way to a server, if there is one now."""
    found = connect_nearby(address)
    return None if found is None else NearLine(found, wake_fd)
