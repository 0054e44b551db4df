"""A server: its loop, which reads requests and sends answers, and its process."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError
from ..tables.checkpoint.files import make_folder
from ..tables.config import TableConfig
from ..tables.multi.several_tables import MultiConfig
from .checkpoint_service import CheckpointService
from .clients import Clients
from .curve import ServerKeys, needs_keys
from .errors import FrameError
from .messages import MAX_FRAME_BYTES, MAX_FRAMES, ServerAnswer, Verb, message, read_request
from .recovery import LogClock, Recovered, Recovery, own_folder, sole_server
from .request_scheduler import (
    FIRST_FRAME_BYTES,
    AnswerQueue,
    Journal,
    RequestScheduler,
    SmallLookupPath,
    WaitingLimit,
)
from .service import TableService, failure
from .sockets import MOST_WAITING, Backlog, SocketPoller
from .unix_listener import ReplyAddress, UnixListener, UnixPeer, open_packet
from .unix_messages import from_head, is_plain, listen_unix

_TURN = 64  # requests read before waiting answers are sent
_LINGER_S = 5  # for sending the last answers before exit
# ZeroMQ's limit on the waiting messages of one client is off: if it stops reading a client whose
# connection then ends, libzmq 4.3.5 answers the next heartbeat and aborts the process. `Backlog`
# finds clients that send too much.
_QUEUED_IN = 0
_QUEUED_OUT = 4096  # parts of answers that wait for one client; more are dropped
_SOCKET_BYTES = 2**22
_IDLE_S, _PROBE_S, _PROBES = 60, 15, 4  # TCP keepalive, to detect clients that disappeared


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much may wait in a server before it answers that it is busy."""

    requests: int = 1024
    request_bytes: int = 2**31
    frame_bytes: int = MAX_FRAME_BYTES


class Server:
    """The sockets and the loop of one server. Created, run and closed by one thread.

    `stop` may be called from any thread or signal handler. The server finishes the requests that it
    has accepted.
    """

    def __init__(
        self,
        service: TableService,
        clients: Clients | None = None,
        *,
        name: str = "0/1",
        listen: str = "tcp://127.0.0.1:0",
        keys: ServerKeys | None = None,
        insecure: bool = False,
        limits: ServerLimits | None = None,
        journal: Journal | None = None,
        rolled_back_to: int = 0,
        incarnation: int = 0,
    ) -> None:
        import zmq

        needs_keys(listen, keys, insecure)
        limits = limits or ServerLimits()
        self._zmq = zmq
        self._more, self._now, self._in = int(zmq.SNDMORE), int(zmq.NOBLOCK), int(zmq.POLLIN)
        self._rcvmore, self._events = int(zmq.RCVMORE), int(zmq.EVENTS)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.get_ident()
        self._answer_queue = AnswerQueue(self._wake)
        self._stopping = False
        self._context = zmq.Context()
        self._guard = None if keys is None else keys.guard(self._context)
        try:
            self._socket = self._bind(listen, keys, limits)
            guard = [] if self._guard is None else [self._guard.socket]
            self._waiting = SocketPoller(self._socket, self._wake_fd, *guard)
            self._listener = self._open_listener(keys)
        except ConfigError:
            self._context.destroy(linger=0)
            os.close(self._wake_fd)
            raise
        self.scheduler = RequestScheduler(
            service,
            clients or Clients(),
            self._send,
            name=name,
            room=WaitingLimit(limits.requests, limits.request_bytes),
            journal=journal,
            rolled_back_to=rolled_back_to,
            incarnation=incarnation,
        )
        self._small_lookups = SmallLookupPath(self.scheduler)
        self._backlog = Backlog(encrypted=keys is not None)
        self._cut_off: set[bytes] = set()  # disconnected clients whose messages may still wait

    @property
    def counters(self) -> Counters:
        """All counters since the start."""
        return self.scheduler.counters

    def _bind(self, listen: str, keys: ServerKeys | None, limits: ServerLimits) -> Any:
        zmq = self._zmq
        socket: Any = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 1000 * _LINGER_S)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # to count answers that cannot be sent
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
                f"cannot listen at {listen}: {error.strerror}. Write host:port, with a free port."
            ) from error
        self.address = socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        return socket

    def _open_listener(self, keys: ServerKeys | None) -> UnixListener | None:
        listening = None if keys is not None else listen_unix(self.address)
        return None if listening is None else UnixListener(listening, self._waiting)

    # ---- the loop

    def run(self) -> None:
        """Serves until `stop`, then finishes the accepted requests and sends the last answers."""
        self._thread = threading.get_ident()
        waiting = self._waiting
        while not self._stopping:
            pause_ms = None if self._listener is None else self._listener.pause_ms()
            changed = waiting.wait(0 if waiting.has_input(self._socket) else pause_ms)
            self._clear_wake(changed)
            self._read_packets(changed)
            if waiting.has_input(self._socket):
                self._read_some()
            while self._guard is not None and waiting.has_input(self._guard.socket):
                self._guard.answer()
            self._send_waiting()
        self._drain()

    def stop(self) -> None:
        """Makes `run` finish its work and return."""
        self._stopping = True
        self._wake()

    def close(self) -> None:
        """Closes the sockets after sending the last answers."""
        if self._listener is not None:
            self._listener.close(_LINGER_S)
        self._socket.close()
        if self._guard is not None:
            self._guard.socket.close()
        self._backlog.forget()
        self._context.term()
        os.close(self._wake_fd)

    def _drain(self) -> None:
        self.scheduler.is_draining = True
        self._socket.unbind(self.address)  # connections stay open for the last answers
        if self._listener is not None:
            self._listener.shut()
        self.scheduler.close()
        self._send_waiting()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _clear_wake(self, changed: list[tuple[int, int]]) -> None:
        if any(descriptor == self._wake_fd for descriptor, _ in changed):
            os.eventfd_read(self._wake_fd)

    # ---- in

    def _read_some(self) -> None:
        for _ in range(_TURN):
            try:  # the input that ended the poll may be gone
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
        """Receives the address of the next message and starts to watch its client."""
        frame = self._socket.recv(self._now, copy=False)
        to = frame.bytes
        with suppress(self._zmq.ZMQError):  # ZeroMQ does not know the connection
            self._backlog.watch(to, frame.get(self._zmq.SRCFD))
        return to

    def _skip(self) -> None:
        """Discards a message of a client that was disconnected."""
        self._socket.recv_into(self._small_lookups.room)
        while self._has_more():
            self._socket.recv(copy=False)

    def _count(self, to: bytes, frames: int, size: int) -> None:
        """Disconnects a client that sends faster than the server can read."""
        if to != self._backlog.client or not self._backlog.is_too_long(frames, size):
            return
        self._backlog.cut_off()
        self._cut_off.add(to)
        self.counters.add("clients_cut_off")
        logging.getLogger("hedgerow").warning(
            "server %s: cut off a client with more than %d messages waiting to be read",
            *(self.scheduler.name, MOST_WAITING),
        )

    def _read_packets(self, changed: list[tuple[int, int]]) -> None:
        """Reads one packet of each client that has sent some, so that no client delays another."""
        for descriptor, what in changed:
            peer = None if self._listener is None else self._listener.came(descriptor, what)
            if peer is not None:
                self._take_packet(peer)

    def _take_packet(self, peer: UnixPeer) -> None:
        length, fds = peer.receive(self._small_lookups.room)
        try:
            if length > 0:
                self._answer_packet(peer, length, fds)
            elif not length and self._listener is not None:
                self._listener.lose(peer)
        finally:
            for fd in fds:
                os.close(fd)

    def _answer_packet(self, peer: UnixPeer, length: int, fds: list[int]) -> None:
        to, first = ReplyAddress(peer), self._small_lookups.room[:length]
        try:
            if is_plain(first):
                answer = self._small_lookups.answer(length)
                if answer is None:
                    self._take_frames(to, [bytes(first)], length)
                else:
                    self._send_packet(peer, [answer])
                return
            to, head, buffers = open_packet(peer, memoryview(bytes(first)), fds)
            frames = [head, *buffers]
            self._take_frames(to, frames, sum(len(frame) for frame in frames))
        except FrameError as error:
            self._refuse(to, [from_head(first)], error)
        except Exception as error:  # an internal error must not end the loop
            self._tell_fault(to, from_head(first), error)

    def _take(self, to: bytes) -> None:
        length = self._socket.recv_into(self._small_lookups.room)
        try:
            answer = None if self._has_more() else self._small_lookups.answer(length)
            if answer is None:
                self._take_any(to, length)
            else:
                self._count(to, 1, length)
                self._send_frames(to, [answer])
        except Exception as error:  # an internal error must not end the loop
            self._tell_fault(to, self._small_lookups.room[:length], error)

    def _tell_fault(self, to: object, first: memoryview, error: Exception) -> None:
        logging.getLogger("hedgerow").exception("server %s: a fault", self.scheduler.name)
        self.counters.add("faults")
        self._send(to, _sequence_of([first]), failure(Verb.HEALTH, error))

    def _take_any(self, to: bytes, length: int) -> None:
        frames: list[Any] = [bytes(self._small_lookups.room[:length])]
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
        if isinstance(to, ReplyAddress):
            request.room = to.room
        self.scheduler.take(to, request, total)

    def _has_more(self) -> bool:
        return bool(self._socket.getsockopt(self._rcvmore))

    def _refuse(self, to: object, frames: list[Any], error: FrameError) -> None:
        self._refuse_in_words(to, _sequence_of(frames), error)

    def _refuse_in_words(self, to: object, sequence: int, error: FrameError) -> None:
        self.counters.add("frames_refused")
        self._send(to, sequence, failure(Verb.HEALTH, error))

    # ---- out

    def _send(self, to: object, sequence: int, answer: ServerAnswer) -> None:
        head = answer.head(sequence, self.scheduler.incarnation)
        if isinstance(to, ReplyAddress):
            try:
                pieces, to = to.packet(head, answer.frames), to.peer
            except FrameError as error:  # the client shares too little memory for the answer
                self._refuse_in_words(to, sequence, error)
                return
        else:
            pieces = message(head, answer.frames)
        if threading.get_ident() == self._thread:
            self._send_now(to, pieces)
        else:
            self._answer_queue.put(to, pieces)

    def _send_waiting(self) -> None:
        while (found := self._answer_queue.take()) is not None:
            self._send_now(*found)

    def _send_now(self, to: Any, pieces: Sequence[Any]) -> None:
        if isinstance(to, UnixPeer):
            self._send_packet(to, pieces)
        else:
            self._send_frames(to, pieces)

    def _send_packet(self, peer: UnixPeer, pieces: Sequence[Any]) -> None:
        if self._listener is None or not self._listener.send(peer, pieces):
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
            self.counters.add("answers_dropped")  # the client sends the request again, or is gone


def _sequence_of(frames: list[Any]) -> int:
    """Returns the sequence of an unreadable request, or 0, so that its client gets an answer."""
    place = 24
    if not frames or len(frames[0]) < place + 8:
        return 0
    return int.from_bytes(bytes(frames[0][place : place + 8]), "little")


_SWITCH_S = 0.0005  # short: threads of a server hold the GIL for microseconds at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """The settings of a server."""

    shard: int
    shards: int
    listen: str
    tables: MultiConfig | None = None
    keys: Path | None = None
    insecure: bool = False
    checkpoint: Path | None = None
    durability: str = "checkpoint"

    def __post_init__(self) -> None:
        checks.choice("ServerPlan", "durability", self.durability, ("checkpoint", "log"))
        if self.durability == "log" and self.checkpoint is None:
            raise ConfigError("durability is 'log' without a folder; pass --checkpoint DIR.")

    @staticmethod
    def of(
        shard: str,
        listen: str,
        *,
        tables: Sequence[TableConfig] | None = None,
        keys: Path | None = None,
        insecure: bool = False,
        checkpoint: Path | None = None,
        durability: str = "checkpoint",
    ) -> ServerPlan:
        """Returns a plan from the values of a command line.

        >>> ServerPlan.of("1/4", "127.0.0.1:0").listen
        'tcp://127.0.0.1:0'
        """
        number, _, count = shard.partition("/")
        if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
            raise ConfigError(f"shard is {shard!r}; it must be i/n with i from 0 to n-1, as 0/4.")
        return ServerPlan(
            shard=int(number),
            shards=int(count),
            listen=listen if "://" in listen else f"tcp://{listen}",
            tables=None if tables is None else MultiConfig.of({t.name: t for t in tables}),
            keys=keys,
            insecure=insecure,
            checkpoint=checkpoint,
            durability=durability,
        )

    @property
    def name(self) -> str:
        """The name of the server in error messages: `1/4`."""
        return f"{self.shard}/{self.shards}"

    @property
    def folder(self) -> Path | None:
        """The server's own folder inside `checkpoint`."""
        return self.checkpoint and own_folder(self.checkpoint, self.shard, self.shards)


def serve(
    plan: ServerPlan,
    tell: Callable[[str], None],
    stop_with: Callable[[Callable[[], None]], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT. `tell` gets the address once clients can connect.

    If `stop_with` is given, it is called with a function that stops the server from any thread, and
    no signal handler is installed.
    """
    sys.setswitchinterval(_SWITCH_S)
    stopped_by = stop_with or _by_signals
    if plan.folder is None:
        _serve(plan, tell, stopped_by)
        return
    make_folder(plan.folder)
    with sole_server(plan.folder):
        _serve(plan, tell, stopped_by)


def _serve(
    plan: ServerPlan,
    tell: Callable[[str], None],
    stopped_by: Callable[[Callable[[], None]], None],
) -> None:
    keys = None if plan.keys is None else ServerKeys.read(plan.keys)
    clock = LogClock() if plan.durability == "log" else None
    service, clients = TableService(clock), Clients()
    if plan.tables is not None:
        service.open(plan.tables)
    start = _recover(plan, service, clients, clock)
    service.note_start()
    server = Server(
        service,
        clients,
        name=plan.name,
        listen=plan.listen,
        keys=keys,
        insecure=plan.insecure,
        journal=start.log,
        rolled_back_to=start.step,
        incarnation=start.incarnation,
    )
    checkpoints = CheckpointService(
        server.scheduler, plan.shard, plan.shards, folder=plan.folder, log=start.log
    )
    server.scheduler.checkpoints = checkpoints
    stopped_by(server.stop)
    try:
        checkpoints.begin()
        tell(server.address)
        server.run()
        checkpoints.leave()
    finally:
        server.close()


def serve_shard(
    shard: str,
    listen: str,
    *,
    tell: Callable[[str], None],
    stop_with: Callable[[Callable[[], None]], None],
    keys: Path | None,
    insecure: bool,
    checkpoint: Path | None,
    durability: str,
) -> None:
    """Runs `serve`. Launchers start a server by the name of this function."""
    plan = ServerPlan.of(
        shard,
        listen,
        keys=keys,
        insecure=insecure,
        checkpoint=checkpoint,
        durability=durability,
    )
    serve(plan, tell, stop_with)


def _by_signals(stop: Callable[[], None]) -> None:
    """Makes SIGTERM and SIGINT call `stop`, even just before the main thread starts to sleep.

    Python runs its signal handlers in the main thread, which may sleep in a poll without end. The
    system's handler writes to the wakeup file, which another thread reads immediately.
    """
    told, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)

    ends = (told, tell)
    thread = threading.Thread(target=_stop_when_told, args=(stop, ends), daemon=True)
    thread.start()


def _stop_when_told(stop: Callable[[], None], ends: tuple[socket.socket, socket.socket]) -> None:
    """Calls `stop` after the first signal. Both ends stay open, so later signals have no effect."""
    told, _ = ends
    told.recv(1)
    stop()
    while told.recv(1):
        continue


def _recover(
    plan: ServerPlan, service: TableService, clients: Clients, clock: LogClock | None
) -> Recovered:
    if plan.checkpoint is None:
        return Recovered()
    import pyarrow  # noqa: F401 - else a save would import it in its low-priority thread

    recovery = Recovery(plan.checkpoint, plan.shard, plan.shards, service, clients)
    return recovery.from_checkpoint() if clock is None else recovery.from_log(clock)
