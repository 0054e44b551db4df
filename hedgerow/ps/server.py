"""The loop of a server: requests in from the socket, answers out, nothing in between waits."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..core.counters import Counters
from ..core.errors import ConfigError
from .backlog import MOST_WAITING, Backlog
from .clients import Clients
from .curve import ServerKeys, needs_keys
from .desk import Desk, Journal
from .errors import FrameError
from .frames import MAX_FRAME_BYTES, MAX_FRAMES, Answer, Verb, message, read_request
from .lanes import Outbox, Room
from .near_door import Door, Peer, Reply, opened
from .nearby import listen_nearby
from .packets import from_head, is_plain
from .service import Service, failure
from .short_way import FIRST_FRAME_BYTES, ShortWay
from .waiting import Waiting

_TURN = 64  # requests read before answers go out
_LINGER_S = 5  # for the last answers of a server that leaves
# Messages of one client that wait inside the socket: no limit of ZeroMQ's. Where one stops it
# reading a client whose connection then ends, libzmq 4.3.5 answers the next sign of life, and
# aborts the process. `Backlog` finds a client that sends without end.
_QUEUED_IN = 0
_QUEUED_OUT = 4096  # parts of answers that a client has not taken; what comes after is dropped
_SOCKET_BYTES = 2**22
_IDLE_S, _PROBE_S, _PROBES = 60, 15, 4  # until a client whose machine is gone is forgotten


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait in a server before it says that it is busy."""

    requests: int = 1024
    request_bytes: int = 2**31
    frame_bytes: int = MAX_FRAME_BYTES


class Server:
    """One server process's socket and desk. Made, used and closed by one thread.

    `stop` may be called from any thread or signal handler: what was accepted is still done.
    """

    def __init__(
        self,
        service: Service,
        clients: Clients | None = None,
        *,
        name: str = "0/1",
        listen: str = "tcp://127.0.0.1:0",
        keys: ServerKeys | None = None,
        insecure: bool = False,
        limits: Limits | None = None,
        journal: Journal | None = None,
        rolled_back_to: int = 0,
        incarnation: int = 0,
    ) -> None:
        import zmq

        needs_keys(listen, keys, insecure)
        limits = limits or Limits()
        self._zmq = zmq
        self._more, self._now, self._in = int(zmq.SNDMORE), int(zmq.NOBLOCK), int(zmq.POLLIN)
        self._rcvmore, self._events = int(zmq.RCVMORE), int(zmq.EVENTS)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.get_ident()
        self._outbox = Outbox(self._wake)
        self._stopping = False
        self._context = zmq.Context()
        self._guard = None if keys is None else keys.guard(self._context)
        try:
            self._socket = self._bind(listen, keys, limits)
            guard = [] if self._guard is None else [self._guard.socket]
            self._waiting = Waiting(self._socket, self._wake_fd, *guard)
            self._door = self._open_door(keys)
        except ConfigError:
            self._context.destroy(linger=0)
            os.close(self._wake_fd)
            raise
        self.desk = Desk(
            service,
            clients or Clients(),
            self._send,
            name=name,
            room=Room(limits.requests, limits.request_bytes),
            journal=journal,
            rolled_back_to=rolled_back_to,
            incarnation=incarnation,
        )
        self._short_way = ShortWay(self.desk)
        self._backlog = Backlog(encrypted=keys is not None)
        self._cut_off: set[bytes] = set()  # clients whose messages may still wait

    @property
    def counters(self) -> Counters:
        """Everything counted since the start."""
        return self.desk.counters

    def _bind(self, listen: str, keys: ServerKeys | None, limits: Limits) -> Any:
        zmq = self._zmq
        socket: Any = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 1000 * _LINGER_S)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an answer that cannot go is counted
        socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes)
        socket.setsockopt(zmq.RCVHWM, _QUEUED_IN)
        socket.setsockopt(zmq.SNDHWM, _QUEUED_OUT)
        socket.setsockopt(zmq.SNDBUF, _SOCKET_BYTES)
        socket.setsockopt(zmq.RCVBUF, _SOCKET_BYTES)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _IDLE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _PROBE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _PROBES)
        if keys is not None:
            keys.protect(socket)
        try:
            socket.bind(listen)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"cannot listen at {listen}: {error.strerror}. Write host:port, with a port that "
                f"nobody uses."
            ) from error
        self.address = socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        return socket

    def _open_door(self, keys: ServerKeys | None) -> Door | None:
        listening = None if keys is not None else listen_nearby(self.address)
        return None if listening is None else Door(listening, self._waiting)

    # ---- the loop

    def run(self) -> None:
        """Serves until `stop`, then does what was accepted and sends the last answers."""
        self._thread = threading.get_ident()
        waiting = self._waiting
        while not self._stopping:
            pause_ms = None if self._door is None else self._door.pause_ms()
            changed = waiting.wait(0 if waiting.has_input(self._socket) else pause_ms)
            self._clear_wake(changed)
            self._read_nearby(changed)
            if waiting.has_input(self._socket):
                self._read_some()
            while self._guard is not None and waiting.has_input(self._guard.socket):
                self._guard.answer()
            self._send_waiting()
        self._drain()

    def stop(self) -> None:
        """Ends `run` in good order."""
        self._stopping = True
        self._wake()

    def close(self) -> None:
        """Gives the address back; answers that were sent still go out."""
        if self._door is not None:
            self._door.close(_LINGER_S)
        self._socket.close()
        if self._guard is not None:
            self._guard.socket.close()
        self._backlog.forget()
        self._context.term()
        os.close(self._wake_fd)

    def _drain(self) -> None:
        self.desk.is_draining = True
        self._socket.unbind(self.address)  # connections stay: answers still go out
        if self._door is not None:
            self._door.shut()
        self.desk.close()
        self._send_waiting()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _clear_wake(self, changed: list[tuple[int, int]]) -> None:
        if any(descriptor == self._wake_fd for descriptor, _ in changed):
            os.eventfd_read(self._wake_fd)

    # ---- in

    def _read_some(self) -> None:
        for _ in range(_TURN):
            try:  # what made the poll return may be gone again
                to = self._watched() if self._backlog.is_due() else self._socket.recv(self._now)
            except self._zmq.Again:
                return
            if to in self._cut_off:
                self._skip()
            else:
                self._take(to)
            if not self._socket.getsockopt(self._events) & self._in:
                self._backlog.forget()
                self._cut_off.clear()
                return

    def _watched(self) -> bytes:
        """The next client, whose messages are counted from now on."""
        frame = self._socket.recv(self._now, copy=False)
        to = frame.bytes
        with suppress(self._zmq.ZMQError):  # ZeroMQ does not know what it came through
            self._backlog.watch(to, frame.get(self._zmq.SRCFD))
        return to

    def _skip(self) -> None:
        """Reads past a message of a client that was cut off."""
        self._socket.recv_into(self._short_way.room)
        while self._has_more():
            self._socket.recv(copy=False)

    def _count(self, to: bytes, frames: int, size: int) -> None:
        """Cuts a client off that sends faster than it can be served: it connects again."""
        if to != self._backlog.client or not self._backlog.is_too_long(frames, size):
            return
        self._backlog.cut_off()
        self._cut_off.add(to)
        self.counters.add("clients_cut_off")
        logging.getLogger("hedgerow").warning(
            "server %s: cut off a client with more than %d messages waiting to be read",
            *(self.desk.name, MOST_WAITING),
        )

    def _read_nearby(self, changed: list[tuple[int, int]]) -> None:
        """One packet of each client that has sent some: none has to wait for another's many."""
        for descriptor, what in changed:
            peer = None if self._door is None else self._door.came(descriptor, what)
            if peer is not None:
                self._take_packet(peer)

    def _take_packet(self, peer: Peer) -> None:
        length, fds = peer.receive(self._short_way.room)
        try:
            if length > 0:
                self._answer_packet(peer, length, fds)
            elif not length and self._door is not None:
                self._door.lose(peer)
        finally:
            for fd in fds:
                os.close(fd)

    def _answer_packet(self, peer: Peer, length: int, fds: list[int]) -> None:
        to, first = Reply(peer), self._short_way.room[:length]
        try:
            if is_plain(first):
                answer = self._short_way.answer(length)
                if answer is None:
                    self._take_frames(to, [bytes(first)], length)
                else:
                    self._send_packet(peer, [answer])
                return
            to, head, buffers = opened(peer, memoryview(bytes(first)), fds)
            frames = [head, *buffers]
            self._take_frames(to, frames, sum(len(frame) for frame in frames))
        except FrameError as error:
            self._refuse(to, [from_head(first)], error)
        except Exception as error:  # a fault of ours must not end the loop
            self._tell_fault(to, from_head(first), error)

    def _take(self, to: bytes) -> None:
        length = self._socket.recv_into(self._short_way.room)
        try:
            answer = None if self._has_more() else self._short_way.answer(length)
            if answer is None:
                self._take_any(to, length)
            else:
                self._count(to, 1, length)
                self._send_frames(to, [answer])
        except Exception as error:  # a fault of ours must not end the loop
            self._tell_fault(to, self._short_way.room[:length], error)

    def _tell_fault(self, to: object, first: memoryview, error: Exception) -> None:
        logging.getLogger("hedgerow").exception("server %s: a fault", self.desk.name)
        self.counters.add("faults")
        self._send(to, _sequence_of([first]), failure(Verb.HEALTH, error))

    def _take_any(self, to: bytes, length: int) -> None:
        frames: list[Any] = [bytes(self._short_way.room[:length])]
        total, count = length, 1
        while self._has_more():
            frame = self._socket.recv(copy=False)
            total += len(frame)
            count += 1
            if len(frames) < MAX_FRAMES:
                frames.append(frame.buffer)
        self._count(to, count, total)
        self._take_frames(to, frames, total)

    def _take_frames(self, to: object, frames: list[Any], total: int) -> None:
        try:
            if total > FIRST_FRAME_BYTES and len(frames) == 1:
                raise FrameError(
                    f"a first frame of {total} bytes; at most {FIRST_FRAME_BYTES} are allowed."
                )
            request = read_request(frames)
        except FrameError as error:
            self._refuse(to, frames, error)
            return
        if isinstance(to, Reply):
            request.room = to.room
        self.desk.take(to, request, total)

    def _has_more(self) -> bool:
        return bool(self._socket.getsockopt(self._rcvmore))

    def _refuse(self, to: object, frames: list[Any], error: FrameError) -> None:
        self._refuse_in_words(to, _sequence_of(frames), error)

    def _refuse_in_words(self, to: object, sequence: int, error: FrameError) -> None:
        self.counters.add("frames_refused")
        self._send(to, sequence, failure(Verb.HEALTH, error))

    # ---- out

    def _send(self, to: object, sequence: int, answer: Answer) -> None:
        head = answer.head(sequence, self.desk.incarnation)
        if isinstance(to, Reply):
            try:
                pieces, to = to.packet(head, answer.frames), to.peer
            except FrameError as error:  # its client shares less memory than it asks to be filled
                self._refuse_in_words(to, sequence, error)
                return
        else:
            pieces = message(head, answer.frames)
        if threading.get_ident() == self._thread:
            self._send_now(to, pieces)
        else:
            self._outbox.put(to, pieces)

    def _send_waiting(self) -> None:
        while (found := self._outbox.take()) is not None:
            self._send_now(*found)

    def _send_now(self, to: Any, pieces: Sequence[Any]) -> None:
        if isinstance(to, Peer):
            self._send_packet(to, pieces)
        else:
            self._send_frames(to, pieces)

    def _send_packet(self, peer: Peer, pieces: Sequence[Any]) -> None:
        if self._door is None or not self._door.send(peer, pieces):
            self.counters.add("answers_dropped")

    def _send_frames(self, to: Any, frames: Sequence[Any]) -> None:
        zmq, more = self._zmq, self._more
        first, *buffers = frames
        try:
            self._socket.send(to, more | self._now)
            self._socket.send(first, more if buffers else 0)
            for left, frame in enumerate(buffers, 1 - len(buffers)):
                self._socket.send(frame, more if left else 0, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self.counters.add("answers_dropped")  # the client asks again, or is gone


def _sequence_of(frames: list[Any]) -> int:
    """The number of a request that cannot be read, if there is one: its client waits for it."""
    place = 24
    if not frames or len(frames[0]) < place + 8:
        return 0
    return int.from_bytes(bytes(frames[0][place : place + 8]), "little")
