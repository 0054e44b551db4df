"""Decides when a server executes each request, and on which thread.

Most requests are small lookups. `SmallLookupPath` answers these without making objects between the
socket and the rows. All other requests go through `RequestScheduler` and `TableService`.
"""

from __future__ import annotations

import logging
import queue
import secrets
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from ..core.counters import Counters
from ..core.errors import HedgerowError, StateError
from .clients import Clients, WriteState
from .errors import FrameError, LogError
from .messages import (
    ANSWER,
    CONTROL,
    LONG_READS,
    MAGIC,
    REQUEST,
    SMALL_BYTES,
    STEP,
    VERSION,
    Buffer,
    ServerAnswer,
    ServerRequest,
    Status,
    Verb,
    config_of,
    text_of,
    value_of,
)
from .service import MISSING, TableService, failure

GROUP = 64  # most writes per flush of the log


class WaitingLimit:
    """Limits the number and the bytes of waiting requests. Safe from many threads.

    >>> room = WaitingLimit(requests=1, room_bytes=100)
    >>> room.take(70), room.take(20)
    (True, False)
    """

    def __init__(self, requests: int, room_bytes: int) -> None:
        self._lock = threading.Lock()
        self._requests, self._bytes = requests, room_bytes
        self.waiting = 0
        self.waiting_bytes = 0

    def take(self, amount_bytes: int) -> bool:
        """Adds a request if it fits, and returns whether it did.

        If none is waiting, a request of any size fits.
        """
        with self._lock:
            full = self.waiting_bytes + amount_bytes > self._bytes and self.waiting > 0
            if full or self.waiting >= self._requests:
                return False
            self.waiting += 1
            self.waiting_bytes += amount_bytes
            return True

    def give(self, amount_bytes: int) -> None:
        """Removes a request that is done."""
        with self._lock:
            self.waiting -= 1
            self.waiting_bytes -= amount_bytes


class UnsentBytes:
    """Counts the bytes of large answers that are not sent yet. Safe from many threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lower = threading.Condition()
        self.waiting_bytes = 0

    def hold(self, buffer: object, amount_bytes: int) -> None:
        """Counts a buffer until it is freed, which happens when the socket has sent it."""
        with self._lower:
            self.waiting_bytes += amount_bytes
        weakref.finalize(buffer, self._sent, amount_bytes).atexit = False

    def _sent(self, amount_bytes: int) -> None:
        with self._lower:
            self.waiting_bytes -= amount_bytes
            self._lower.notify_all()

    def has_room(self, patience_s: float) -> bool:
        """Waits until the unsent bytes are below the limit. Returns False after `patience_s`."""
        with self._lower:
            return self._lower.wait_for(lambda: self.waiting_bytes < self._most, patience_s)


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """An accepted request and the address of its answer."""

    request: ServerRequest
    to: object
    room_bytes: int
    arrived_s: float = field(default_factory=time.monotonic)

    def is_late(self) -> bool:
        """Whether the deadline of the client has passed."""
        limit_ms = self.request.origin.deadline_ms
        return limit_ms > 0 and (time.monotonic() - self.arrived_s) * 1000 > limit_ms


class WorkQueue:
    """Threads that run jobs in the order of arrival, each taking up to `group` jobs at a time.

    `work` must not raise; it sends errors as answers.
    """

    def __init__(
        self, name: str, threads: int, work: Callable[[list[QueuedRequest]], None], group: int = 1
    ) -> None:
        self._jobs: deque[QueuedRequest] = deque()
        self._ready = threading.Condition()
        self._work, self._group = work, group
        self._closed = False
        self._running = 0
        self._threads = [
            threading.Thread(target=self._serve, name=f"hedgerow {name} {i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: QueuedRequest) -> None:
        """Adds a job to the queue."""
        with self._ready:
            self._jobs.append(job)
            self._ready.notify()

    def is_idle(self) -> bool:
        """Whether every queued job is done."""
        with self._ready:
            return not self._jobs and not self._running

    def _serve(self) -> None:
        while True:
            with self._ready:
                while not self._jobs:
                    if self._closed:
                        return
                    self._ready.wait()
                count = min(self._group, len(self._jobs))
                jobs = [self._jobs.popleft() for _ in range(count)]
                self._running += 1
            try:
                self._work(jobs)
            finally:
                del jobs  # free the clients' memory now; the next jobs may come much later
                with self._ready:
                    self._running -= 1

    def close(self) -> None:
        """Runs the queued jobs, then ends the threads."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()


class AnswerQueue:
    """Answers from other threads to the loop, which is woken for each of them."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._answers: queue.SimpleQueue[tuple[object, Sequence[Buffer]]] = queue.SimpleQueue()
        self._wake = wake

    def put(self, to: object, frames: Sequence[Buffer]) -> None:
        """Adds an answer. May be called from any thread."""
        self._answers.put((to, frames))
        self._wake()

    def take(self) -> tuple[object, Sequence[Buffer]] | None:
        """Returns the next answer, or None if there is none."""
        try:
            return self._answers.get_nowait()
        except queue.Empty:
            return None


SMALL_IDS = 4096  # up to this, the loop runs a request itself: a thread switch takes longer
READERS = 2
OUT_BYTES = 2**29  # unsent bytes of large answers, above which no further part is read
OUT_PATIENCE_S = 2.0
Send = Callable[[object, int, ServerAnswer], None]
"""Sends an answer: its address, the sequence of the request, the answer. From any thread."""


class Journal(Protocol):
    """The log that stores accepted writes before they are answered."""

    def append(self, requests: Sequence[Sequence[Buffer]]) -> None:
        """Stores the requests durably. If it raises `LogError`, none of them is accepted."""
        ...


class SaveLoadHandler(Protocol):
    """Saves and loads the tables for clients. Its `serve` runs in its own thread."""

    def serve(self, verb: Verb, order: dict[str, Any]) -> dict[str, Any]:
        """Executes `order`."""
        ...

    def after_writes(self) -> None:
        """Called after each group of writes, while no write runs. Must not block."""
        ...


class RequestScheduler:
    """Schedules the requests of one server. Only the loop calls `take`; any thread sends answers.

    Writes run one at a time, in the order of arrival. Reads run concurrently, but never before an
    earlier write of the same client.
    """

    def __init__(
        self,
        service: TableService,
        clients: Clients,
        send: Send,
        *,
        name: str,
        room: WaitingLimit,
        journal: Journal | None = None,
        rolled_back_to: int = 0,
        incarnation: int = 0,
    ) -> None:
        self.service, self.clients, self.name = service, clients, name
        self.counters = Counters()
        self.incarnation = incarnation or secrets.randbits(63) | 1
        self.last_step = rolled_back_to
        self.checkpoints: SaveLoadHandler | None = None
        self.is_draining = False
        self._send, self._room, self._journal = send, room, journal
        self._rolled_back_to = rolled_back_to
        self._unsent_bytes = UnsentBytes(OUT_BYTES)
        self._requests = [0] * (max(Verb) + 1)  # by verb; only the loop writes it
        self._applying = threading.Lock()
        self._writes = WorkQueue("writer", 1, self._write_group, GROUP)
        self._reads = WorkQueue("reader", READERS, self._read_group)
        self._orders = WorkQueue("keeper", 1, self._order_group)

    def between_writes(self) -> AbstractContextManager[object]:
        """Returns a lock. While it is held, no row changes, and client records match the rows."""
        return self._applying

    # ---- arrival, in the loop

    def take(self, to: object, request: ServerRequest, request_bytes: int) -> None:
        """Executes a request or queues it."""
        self._requests[request.verb] += 1
        if request.verb in CONTROL:
            self._send(to, request.origin.sequence, self._tell(request.verb))
        elif self._is_from_before(request.origin.incarnation):
            self._tell_rolled_back(to, request)
        elif request.is_write:
            self._take_write(to, request, request_bytes)
        else:
            self._take_read(to, request, request_bytes)

    def is_free(self, client: int, incarnation: int) -> bool:
        """Whether a small read of a client can run now.

        False without tables, if the client has writes in progress, or if it must be told of a
        rollback.
        """
        if self._is_from_before(incarnation) or not self.service.is_open:
            return False
        return not self.clients.is_writing(client)

    def count(self, verb: int) -> None:
        """Counts a request that did not come through `take`."""
        self._requests[verb] += 1

    def _is_from_before(self, incarnation: int) -> bool:
        return self._journal is None and incarnation not in (0, self.incarnation)

    def _tell_rolled_back(self, to: object, request: ServerRequest) -> None:
        self.counters.add("rolled_back_told")
        numbers = (self._rolled_back_to, self.clients.last_of(request.origin.client), 0)
        answer = ServerAnswer(request.verb, status=Status.ROLLED_BACK, numbers=numbers)
        self._send(to, request.origin.sequence, answer)

    def _take_write(self, to: object, request: ServerRequest, request_bytes: int) -> None:
        seen = self.clients.admit(request.origin, to)
        if isinstance(seen, ServerAnswer):
            self.counters.add("writes_repeated")
            self._send(to, request.origin.sequence, seen)
        elif seen is not WriteState.NEW:
            self.counters.add(f"writes_{seen.value}")
            if seen is WriteState.FULL:
                self._refuse(to, request)
        elif not self._room.take(request_bytes):
            self.clients.give_up(request.origin)
            self._refuse(to, request)
        else:
            job = QueuedRequest(request, to, request_bytes)
            if self._journal is None and self._is_small(request) and self._writes.is_idle():
                self._write_group([job])
            else:
                self._writes.submit(job)

    def _take_read(self, to: object, request: ServerRequest, request_bytes: int) -> None:
        in_order = self.clients.is_writing(request.origin.client) or request.verb == Verb.OPEN
        is_order = request.verb in (Verb.CHECKPOINT, Verb.SAVE, Verb.LOAD)
        if not in_order and not is_order and self._is_small(request):
            self._answer_read(to, request)
            return
        if not self._room.take(request_bytes):
            self._refuse(to, request)
            return
        job = QueuedRequest(request, to, request_bytes)
        if is_order:
            self._orders.submit(job)
        elif in_order:
            self._writes.submit(job)
        else:
            self._reads.submit(job)

    def _is_small(self, request: ServerRequest) -> bool:
        if request.verb in LONG_READS:
            return False
        return not request.splits or request.splits[-1] <= SMALL_IDS

    def _refuse(self, to: object, request: ServerRequest) -> None:
        self.counters.add("busy")
        self._send(to, request.origin.sequence, ServerAnswer(request.verb, status=Status.BUSY))

    def _tell(self, verb: Verb) -> ServerAnswer:
        if verb == Verb.DESCRIBE:
            try:
                told = self.service.describe()
            except HedgerowError as error:
                return failure(verb, error)
        elif verb == Verb.COUNTERS:
            asked = {f"requests_{v.name.lower()}": self._requests[v] for v in Verb}
            told = {**self.counters.snapshot(), **{name: n for name, n in asked.items() if n}}
        else:
            told = self._health()
        return ServerAnswer(verb, frames=[text_of(told)])

    def _health(self) -> dict[str, object]:
        state = "draining" if self.is_draining else "serving" if self.service.is_open else "empty"
        return {
            "name": self.name,
            "state": state,
            "rows": self.service.store.size() if self.service.is_open else 0,
            "waiting": self._room.waiting,
            "waiting_bytes": self._room.waiting_bytes,
            "answer_bytes": self._unsent_bytes.waiting_bytes,
            "clients": len(self.clients),
            "incarnation": self.incarnation,
        }

    # ---- work, in any thread

    def _answer_read(self, to: object, request: ServerRequest) -> None:
        for answer in self.service.read(request):
            self._send(to, request.origin.sequence, answer)

    def _read_group(self, jobs: list[QueuedRequest]) -> None:
        for job in jobs:
            try:
                if job.is_late():
                    self.counters.add("late")
                else:
                    self._answer_in_parts(job.to, job.request)
            except Exception as error:  # an internal error must not end the thread
                self._fault(job, error)
            finally:
                self._room.give(job.room_bytes)

    def _answer_in_parts(self, to: object, request: ServerRequest) -> None:
        """Sends the parts of an answer no faster than clients receive them.

        If clients receive nothing for a while, the rest is dropped; a live client sends the request
        again.
        """
        parts = self.service.read(request)
        while self._unsent_bytes.has_room(OUT_PATIENCE_S):
            answer = next(parts, None)
            if answer is None:
                return
            for frame in answer.frames:
                if isinstance(frame, memoryview):
                    self._unsent_bytes.hold(frame, frame.nbytes)
            self._send(to, request.origin.sequence, answer)
            del answer  # free its memory before the next part is read
        self.counters.add("answers_dropped")

    def _write_group(self, jobs: list[QueuedRequest]) -> None:
        # The lock covers log and rows, so that a save always finds them in the same state.
        with self._applying:
            wanted = [job for job in jobs if job.request.is_write or self._makes_tables(job)]
            refused = self._journalled(wanted)
            for job in jobs:
                try:
                    if refused is not None and job in wanted:
                        self._not_accepted(job, refused)
                    else:
                        self._do_in_order(job)
                except Exception as error:  # an internal error must not end the thread
                    self._fault(job, error)
                finally:
                    self._room.give(job.room_bytes)
            if self.checkpoints is not None:
                self.checkpoints.after_writes()

    def _journalled(self, jobs: list[QueuedRequest]) -> LogError | None:
        if self._journal is None or not jobs:
            return None
        try:
            self._journal.append([[job.request.head(), *job.request.frames] for job in jobs])
        except LogError as error:
            self.counters.add("log_failures")
            return error
        except Exception as error:  # an internal error must not end the thread
            logging.getLogger("hedgerow").exception("server %s: a fault of the log", self.name)
            self.counters.add("faults")
            return LogError(f"the write was not accepted: {error!r}.")
        return None

    def _not_accepted(self, job: QueuedRequest, error: LogError) -> None:
        answer = failure(job.request.verb, error)
        if job.request.is_write:
            self.clients.refuse(job.request.origin, answer)
        self._send(job.to, job.request.origin.sequence, answer)

    def _makes_tables(self, job: QueuedRequest) -> bool:
        return job.request.verb == Verb.OPEN and not self.service.is_open

    def _do_in_order(self, job: QueuedRequest) -> None:
        request = job.request
        if request.verb == Verb.OPEN:
            self._send(job.to, request.origin.sequence, self._open(request))
        elif not request.is_write:
            self._answer_in_parts(job.to, request)
        else:
            answer = self.service.write(request)
            self.last_step = max(self.last_step, request.options.step or 0)
            to = self.clients.finish(request.origin, answer)
            self.counters.add("writes_applied")
            self._send(to or job.to, request.origin.sequence, answer)

    def _open(self, request: ServerRequest) -> ServerAnswer:
        try:
            open_tables(self.service, request)
            return ServerAnswer(Verb.OPEN, frames=[text_of(self.service.describe())])
        except HedgerowError as error:
            return failure(Verb.OPEN, error)

    def _order_group(self, jobs: list[QueuedRequest]) -> None:
        for job in jobs:
            request = job.request
            try:
                if self.checkpoints is None:
                    raise StateError(f"server {self.name} cannot save; start it with --checkpoint.")
                order = value_of(request.frames[0]) if request.frames else {}
                if not isinstance(order, dict):
                    raise FrameError(f"an order that is a {type(order).__name__}, not an object.")
                told = self.checkpoints.serve(request.verb, order)
                answer = ServerAnswer(request.verb, frames=[text_of(told)])
                self._send(job.to, request.origin.sequence, answer)
            except HedgerowError as error:
                self._send(job.to, request.origin.sequence, failure(request.verb, error))
            except Exception as error:  # an internal error must not end the thread
                self._fault(job, error)
            finally:
                self._room.give(job.room_bytes)

    def _fault(self, job: QueuedRequest, error: Exception) -> None:
        logging.getLogger("hedgerow").exception("server %s: a fault", self.name)
        self.counters.add("faults")
        answer = failure(job.request.verb, error)
        if job.request.is_write:
            self.clients.refuse(job.request.origin, answer)
        self._send(job.to, job.request.origin.sequence, answer)

    def is_idle(self) -> bool:
        """Whether every accepted request is done."""
        return self._writes.is_idle() and self._reads.is_idle() and self._orders.is_idle()

    def close(self) -> None:
        """Finishes the accepted requests, then ends the threads."""
        for work_queue in (self._writes, self._reads, self._orders):
            work_queue.close()


def open_tables(service: TableService, request: ServerRequest) -> None:
    """Creates the tables that a request describes, or raises if other tables exist."""
    document = value_of(request.frames[0]) if request.frames else None
    service.open(config_of(document))


FIRST_FRAME_BYTES = 2**21
"""The longest first frame of a valid request."""
_LINE_BYTES = 64  # rows that start on a cache line are written faster
_LOOKUP, _DONE = int(Verb.LOOKUP), int(Status.DONE)


class SmallLookupPath:
    """Answers small lookups in fixed memory, without further objects. Single-owner: the loop."""

    def __init__(self, scheduler: RequestScheduler) -> None:
        self._scheduler = scheduler
        self.room, self._request_at = _aligned_memory(FIRST_FRAME_BYTES, 0)
        self._answer, self._rows_at = _aligned_memory(ANSWER.size + SMALL_BYTES, ANSWER.size)

    def answer(self, length: int) -> memoryview | None:
        """Returns the answer to the request in `room`, valid until the next call.

        Returns None if the request must go through `RequestScheduler.take`.
        """
        if length < REQUEST.size:
            return None
        found = REQUEST.unpack_from(self.room)
        magic, version, verb, flags, wire, missing, tables, rates, _, client, sequence = found[:11]
        if verb != _LOOKUP or magic != MAGIC or version != VERSION or wire or rates:
            return None
        if (
            flags & ~STEP
            or missing >= len(MISSING)
            or not self._scheduler.is_free(client, found[12])
        ):
            return None
        step = found[15] if flags else None
        size = self._look_up(length, tables, missing, step)
        if not size:
            return None
        ANSWER.pack_into(
            self._answer,
            0,
            MAGIC,
            VERSION,
            _LOOKUP,
            _DONE,
            0,
            1,
            0,
            sequence,
            self._scheduler.incarnation,
            0,
            1,
            0,
            0,
            0,
            0,
        )
        self._scheduler.count(_LOOKUP)
        return self._answer[:size]

    def _look_up(self, length: int, tables: int, missing: int, step: int | None) -> int:
        """Writes the rows.

        Returns the bytes of the answer, or 0 if the request is not a small lookup.
        """
        service = self._scheduler.service
        dims = service.store.dims
        ids_from = REQUEST.size + 8 * (tables + 1)
        if tables != len(dims) or length < ids_from:
            return 0
        splits = _splits_of(tables).unpack_from(self.room, REQUEST.size)
        ids, floats, last = splits[-1], 0, 0
        for dim, stop in zip(dims, splits[1:], strict=True):
            if stop < last:
                return 0
            floats, last = floats + dim * (stop - last), stop
        if splits[0] or length != ids_from + 8 * ids or ids > SMALL_IDS:
            return 0
        if 4 * floats > SMALL_BYTES or not ids:
            return 0
        ids_at = self._request_at + ids_from
        try:
            service.lookup_at(ids_at, splits, missing, step, self._rows_at)
        except HedgerowError:  # `RequestScheduler.take` reports it
            return 0
        return ANSWER.size + 4 * floats


@lru_cache(maxsize=16)
def _splits_of(tables: int) -> struct.Struct:
    return struct.Struct(f"<{tables + 1}q")


def _aligned_memory(size: int, before: int) -> tuple[memoryview, int]:
    """Returns `size` bytes and the address of the byte at offset `before`, which is aligned."""
    whole = np.empty(size + 2 * _LINE_BYTES, dtype=np.uint8)
    start = -(whole.ctypes.data + before) % _LINE_BYTES
    return whole[start : start + size].data, whole.ctypes.data + start + before
