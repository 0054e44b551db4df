"""The Unix socket of a server: accepts clients, reads their packets and sends answers."""

from __future__ import annotations

import array
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Float32
from .errors import FrameError
from .messages import SMALL_BYTES, Buffer, address_of
from .sockets import SocketPoller
from .unix_messages import (
    ServerBlocks,
    end_of,
    is_of_this_user,
    packet_of,
    read_packet,
    shared_packet,
    spans_of,
    takes_packets,
)

_PEERS = 128  # each may hold a few descriptors; further clients use the TCP address
_QUEUED_OUT = 64  # packets that wait for one client; more are dropped
_DEAF_S = 0.5  # pause in accepting clients when no descriptor is free
_NONE = memoryview(b"")
_ONE_FD = socket.CMSG_SPACE(array.array("i").itemsize)


class UnixPeer:
    """A client on a Unix socket. Single-owner: the loop."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.fd = connected.fileno()
        self.shared = ServerBlocks()
        self.unsent: deque[Sequence[Buffer]] = deque()

    def receive(self, room: memoryview) -> tuple[int, list[int]]:
        """Reads the next packet into `room`. Returns its length and the descriptors sent with it.

        The length is 0 at the end of the connection and -1 if there is no packet. The caller must
        close the descriptors in every case.
        """
        try:
            length, extra, flags, _ = self.socket.recvmsg_into(
                [room], _ONE_FD, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return -1, []
        except OSError:
            return 0, []
        if not extra and not flags & socket.MSG_CTRUNC:
            return length, []
        fds = array.array("i")
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if flags & socket.MSG_CTRUNC:  # this process has no free descriptor
            length = 0
        return length, fds.tolist()

    def send(self, pieces: Sequence[Buffer]) -> None:
        """Sends a packet. Raises `BlockingIOError` if the client's socket is full."""
        self.socket.sendmsg(pieces)


@dataclass(slots=True, eq=False)
class ReplyAddress:
    """The destination of one answer: a client, and its shared memory for the rows."""

    peer: UnixPeer
    block: int = 0
    memory: memoryview = _NONE
    at: int = 0

    @property
    def room(self) -> Float32[Tensor, "floats"] | None:
        """The shared memory after the request, as a tensor that rows can be written to."""
        floats = (len(self.memory) - self.at) // 4
        if floats <= 0:
            return None
        return torch.frombuffer(self.memory, dtype=torch.float32, count=floats, offset=self.at)

    def packet(self, head: Buffer, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Returns the pieces of an answer.

        Large buffers are copied to shared memory if not yet in it.
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        lengths = [len(view) for view in views]
        start = self._place_of(views)
        if start < 0:
            if sum(lengths) <= SMALL_BYTES:
                return packet_of(head, buffers)
            start = self.at
            spans = spans_of(lengths, start)
            if spans[-1].stop > len(self.memory):
                raise FrameError(f"an answer of {sum(lengths)} bytes; its client shares fewer.")
            for span, view in zip(spans, views, strict=True):
                self.memory[span] = view
            self.at = end_of(spans)
        return shared_packet(head, self.block, spans_of(lengths, start))

    def _place_of(self, views: Sequence[memoryview]) -> int:
        """Returns the offset of a single buffer in the shared memory; -1 if it is not inside."""
        if not self.block or len(views) != 1 or not views[0]:
            return -1
        start = address_of(views[0]) - address_of(self.memory)
        return start if 0 <= start <= len(self.memory) - len(views[0]) else -1


class UnixListener:
    """The clients on the Unix socket of a server. Single-owner: the loop."""

    def __init__(self, listening: socket.socket, waiting: SocketPoller) -> None:
        self._listening, self._waiting = listening, waiting
        self._peers: dict[int, UnixPeer] = {}
        self._deaf_until_s = 0.0  # end of the pause after no descriptor was free
        waiting.watch(listening.fileno(), select.POLLIN)

    def pause_ms(self) -> int | None:
        """Returns how long the loop may sleep; None if there is no limit.

        Starts to accept clients again after a pause.
        """
        if not self._deaf_until_s:
            return None
        left_s = self._deaf_until_s - time.monotonic()
        if left_s > 0:
            return int(1000 * left_s) + 1
        self._deaf_until_s = 0.0
        if self._listening.fileno() >= 0:
            self._waiting.watch(self._listening.fileno(), select.POLLIN)
        return None

    def came(self, descriptor: int, what: int) -> UnixPeer | None:
        """Handles an event. Returns the client whose socket is readable, if there is one."""
        peer = self._peers.get(descriptor)
        if peer is None:
            if descriptor == self._listening.fileno():
                self._let_in()
            return None
        if what & select.POLLOUT:
            self._send_unsent(peer)
        return peer if what & ~select.POLLOUT else None

    def _let_in(self) -> None:
        try:
            connected, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError:  # the client stays in the queue, so the poll would return at once
            self._deaf_until_s = time.monotonic() + _DEAF_S
            self._waiting.forget(self._listening.fileno())
            return
        if len(self._peers) < _PEERS and is_of_this_user(connected) and takes_packets(connected):
            peer = self._peers[connected.fileno()] = UnixPeer(connected)
            self._waiting.watch(peer.fd, select.POLLIN)
        else:
            connected.close()

    def lose(self, peer: UnixPeer) -> None:
        """Removes a client. Requests in progress keep its shared memory until they end."""
        if self._peers.pop(peer.fd, None) is not None:
            self._waiting.forget(peer.fd)
            peer.unsent.clear()
            peer.socket.close()

    def send(self, peer: UnixPeer, pieces: Sequence[Buffer]) -> bool:
        """Sends or queues a packet. Returns False if it was dropped."""
        if peer.fd not in self._peers or len(peer.unsent) >= _QUEUED_OUT:
            return False
        if not peer.unsent:
            try:
                peer.send(pieces)
                return True
            except BlockingIOError:
                self._waiting.watch(peer.fd, select.POLLIN | select.POLLOUT)
            except OSError:
                self.lose(peer)
                return False
        peer.unsent.append([bytes(piece) for piece in pieces])
        return True

    def _send_unsent(self, peer: UnixPeer) -> None:
        try:
            while peer.unsent:
                peer.send(peer.unsent[0])
                peer.unsent.popleft()
            self._waiting.watch(peer.fd, select.POLLIN)
        except BlockingIOError:
            return
        except OSError:
            self.lose(peer)

    def shut(self) -> None:
        """Stops accepting clients."""
        self._waiting.forget(self._listening.fileno())
        self._listening.close()

    def close(self, linger_s: float) -> None:
        """Closes all connections after the last answers are sent, or after `linger_s`."""
        self.shut()
        limit_s = time.monotonic() + linger_s
        while late := [peer for peer in self._peers.values() if peer.unsent]:
            if time.monotonic() > limit_s:
                break
            select.select([], [peer.socket for peer in late], [], 0.1)
            for peer in late:
                self._send_unsent(peer)
        for peer in list(self._peers.values()):
            self.lose(peer)


def open_packet(
    peer: UnixPeer, packet: memoryview, fds: list[int]
) -> tuple[ReplyAddress, memoryview, list[memoryview]]:
    """Returns the address of the answer, the head and the buffers of a packet with a prelude.

    The caller keeps ownership of `fds`.
    """
    found = read_packet(packet)
    if not found.block:
        return ReplyAddress(peer), found.head, found.buffers
    for fd in fds[:1]:
        peer.shared.add(found.block, fd)
    memory = peer.shared.of(found.block)
    end = end_of(found.spans)
    if end > len(memory):
        raise FrameError(f"buffers up to {end} in shared memory of {len(memory)} bytes.")
    buffers = [memory[span] for span in found.spans]
    return ReplyAddress(peer, found.block, memory, end), found.head, buffers
