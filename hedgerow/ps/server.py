"""The loop of a server: requests in from the socket, answers out, nothing in between waits."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.counters import Counters
from ..core.errors import ConfigError
from .clients import Clients
from .curve import ServerKeys, needs_keys
from .desk import Desk, Journal
from .errors import FrameError
from .frames import MAX_FRAME_BYTES, MAX_FRAMES, Answer, Verb, message, read_request
from .lanes import Outbox, Room
from .nearby import nearby_name
from .service import Service, failure
from .short_way import FIRST_FRAME_BYTES, ShortWay
from .waiting import Waiting

_TURN = 64  # requests read before answers go out
_LINGER_MS = 5000  # for the last answers of a server that leaves
_QUEUED_IN = 64  # messages of one client that wait inside the socket; then its sends wait
_QUEUED_OUT = 4096  # parts of answers that a client has not taken; what comes after is dropped
_SOCKET_BYTES = 2**22


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
        self._socket = self._bind(listen, keys, limits)
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

    @property
    def counters(self) -> Counters:
        """Everything counted since the start."""
        return self.desk.counters

    def _bind(self, listen: str, keys: ServerKeys | None, limits: Limits) -> Any:
        zmq = self._zmq
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, _LINGER_MS)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an answer that cannot go is counted
        socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes)
        socket.setsockopt(zmq.RCVHWM, _QUEUED_IN)
        socket.setsockopt(zmq.SNDHWM, _QUEUED_OUT)
        socket.setsockopt(zmq.SNDBUF, _SOCKET_BYTES)
        socket.setsockopt(zmq.RCVBUF, _SOCKET_BYTES)
        if keys is not None:
            keys.protect(socket)
        addresses = [self._listen(socket, listen)]
        # One that another process has is as bad as a taken port: clients would ask that process.
        if (name := nearby_name(addresses[0])) is not None:
            addresses.append(self._listen(socket, name))
        self.address, self._addresses = addresses[0], addresses
        return socket

    def _listen(self, socket: Any, address: str) -> str:
        try:
            socket.bind(address)
        except self._zmq.ZMQError as error:
            self._context.destroy(linger=0)
            os.close(self._wake_fd)
            raise ConfigError(
                f"cannot listen at {address}: {error.strerror}. Write host:port, with a port that "
                f"nobody uses."
            ) from error
        return socket.getsockopt(self._zmq.LAST_ENDPOINT).decode().rstrip("\0")

    # ---- the loop

    def run(self) -> None:
        """Serves until `stop`, then does what was accepted and sends the last answers."""
        self._thread = threading.get_ident()
        guard = [] if self._guard is None else [self._guard.socket]
        waiting = Waiting(self._socket, self._wake_fd, *guard)
        while not self._stopping:
            if not waiting.has_input(self._socket):
                self._clear_wake(waiting.wait())
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
        self._socket.close()
        if self._guard is not None:
            self._guard.socket.close()
        self._context.term()
        os.close(self._wake_fd)

    def _drain(self) -> None:
        self.desk.is_draining = True
        for address in self._addresses:
            self._socket.unbind(address)  # connections stay: answers still go out
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
            try:
                to = self._socket.recv(self._now)  # what made the poll return may be gone again
            except self._zmq.Again:
                return
            self._take(to)
            if not self._socket.getsockopt(self._events) & self._in:
                return

    def _take(self, to: bytes) -> None:
        length = self._socket.recv_into(self._short_way.room)
        try:
            answer = None if self._has_more() else self._short_way.answer(length)
            if answer is None:
                self._take_any(to, length)
            else:
                self._send_frames(to, answer, ())
        except Exception as error:  # a fault of ours must not end the loop
            logging.getLogger("hedgerow").exception("server %s: a fault", self.desk.name)
            self.counters.add("faults")
            sequence = _sequence_of([self._short_way.room[:length]])
            self._send(to, sequence, failure(Verb.HEALTH, error))

    def _take_any(self, to: bytes, length: int) -> None:
        first = memoryview(bytes(self._short_way.room[:length]))
        frames: list[Any] = [first]
        total = length
        while self._has_more():
            frame = self._socket.recv(copy=False)
            total += len(frame)
            if len(frames) < MAX_FRAMES:
                frames.append(frame.buffer)
        try:
            if length > FIRST_FRAME_BYTES:
                raise FrameError(
                    f"a first frame of {length} bytes; at most {FIRST_FRAME_BYTES} are allowed."
                )
            request = read_request(frames)
        except FrameError as error:
            self._refuse(to, frames, error)
            return
        self.desk.take(to, request, total)

    def _has_more(self) -> bool:
        return bool(self._socket.getsockopt(self._rcvmore))

    def _refuse(self, to: bytes, frames: list[Any], error: FrameError) -> None:
        self.counters.add("frames_refused")
        sequence = _sequence_of(frames)
        self._send(to, sequence, failure(Verb.HEALTH, error))

    # ---- out

    def _send(self, to: object, sequence: int, answer: Answer) -> None:
        if threading.get_ident() == self._thread:
            self._send_now(to, sequence, answer)
        else:
            self._outbox.put(to, sequence, answer)

    def _send_waiting(self) -> None:
        while (found := self._outbox.take()) is not None:
            self._send_now(*found)

    def _send_now(self, to: Any, sequence: int, answer: Any) -> None:
        first, *buffers = message(answer.head(sequence, self.desk.incarnation), answer.frames)
        self._send_frames(to, first, buffers)

    def _send_frames(self, to: Any, first: Any, buffers: Sequence[Any]) -> None:
        zmq, more = self._zmq, self._more
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
