"""Decides what happens to each request: at once, later, again, or not at all."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..core.counters import Counters
from ..core.errors import HedgerowError, StateError
from .buffers import text_of, value_of
from .clients import Clients, Seen
from .configs import config_of
from .errors import FrameError, LogError
from .frames import CONTROL, LONG_READS, Answer, Buffer, Request, Status, Verb
from .lanes import GROUP, Job, Lane, Outflow, Room
from .service import Service, failure

SMALL_IDS = 4096  # done by the loop itself: handing over would take longer than the work
READERS = 2
OUT_BYTES = 2**29  # of large answers under way, before the next part is looked up
OUT_PATIENCE_S = 2.0
_REQUESTS = {verb: f"requests_{verb.name.lower()}" for verb in Verb}  # counters
Send = Callable[[object, int, Answer], None]
"""To whom, the sequence, the answer; from any thread."""


class Journal(Protocol):
    """Where accepted writes go before they are answered."""

    def append(self, requests: Sequence[Sequence[Buffer]]) -> None:
        """Makes them last; raises `LogError`, and then none of them was accepted."""
        ...


class Keeper(Protocol):
    """Who saves and loads the tables for a client; called in a thread of its own."""

    def serve(self, verb: Verb, order: dict[str, Any]) -> dict[str, Any]:
        """Does what `order` says."""
        ...

    def after_writes(self) -> None:
        """Called after each group of writes, between two of them; must not wait."""
        ...


class Desk:
    """The requests of one server. `take` belongs to the loop; answers come from any thread.

    Writes happen one after the other, in the order of their arrival; reads beside them, but never
    before a write of the same client that came earlier.
    """

    def __init__(
        self,
        service: Service,
        clients: Clients,
        send: Send,
        *,
        name: str,
        room: Room,
        journal: Journal | None = None,
        rolled_back_to: int = 0,
        incarnation: int = 0,
    ) -> None:
        self.service, self.clients, self.name = service, clients, name
        self.counters = Counters()
        self.incarnation = incarnation or secrets.randbits(63) | 1
        self.last_step = rolled_back_to
        self.keeper: Keeper | None = None
        self.is_draining = False
        self._send, self._room, self._journal = send, room, journal
        self._rolled_back_to = rolled_back_to
        self._outflow = Outflow(OUT_BYTES)
        self._requests = [0] * (max(Verb) + 1)  # by verb; only the loop counts here
        self._applying = threading.Lock()
        self._writes = Lane("writer", 1, self._write_group, GROUP)
        self._reads = Lane("reader", READERS, self._read_group)
        self._orders = Lane("keeper", 1, self._order_group)

    def between_writes(self) -> AbstractContextManager[object]:
        """While it is held no row changes, and what clients are remembered by fits the rows."""
        return self._applying

    # ---- arrival, in the loop

    def take(self, to: object, request: Request, request_bytes: int) -> None:
        """Does a request, or sees to it that it is done."""
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
        """Whether a small read of a client that knows that life of the server needs no waiting."""
        if self._is_from_before(incarnation) or not self.service.is_open:
            return False
        return not self.clients.is_writing(client)

    def count(self, verb: int) -> None:
        """A request that did not come through `take`."""
        self._requests[verb] += 1

    def _is_from_before(self, incarnation: int) -> bool:
        return self._journal is None and incarnation not in (0, self.incarnation)

    def _tell_rolled_back(self, to: object, request: Request) -> None:
        self.counters.add("rolled_back_told")
        numbers = (self._rolled_back_to, self.clients.last_of(request.origin.client), 0)
        answer = Answer(request.verb, status=Status.ROLLED_BACK, numbers=numbers)
        self._send(to, request.origin.sequence, answer)

    def _take_write(self, to: object, request: Request, request_bytes: int) -> None:
        seen = self.clients.admit(request.origin, to)
        if isinstance(seen, Answer):
            self.counters.add("writes_repeated")
            self._send(to, request.origin.sequence, seen)
        elif seen is not Seen.NEW:
            self.counters.add(f"writes_{seen.value}")
            if seen is Seen.FULL:
                self._refuse(to, request)
        elif not self._room.take(request_bytes):
            self.clients.give_up(request.origin)
            self._refuse(to, request)
        else:
            job = Job(request, to, request_bytes)
            if self._journal is None and self._is_small(request) and self._writes.is_idle():
                self._write_group([job])
            else:
                self._writes.submit(job)

    def _take_read(self, to: object, request: Request, request_bytes: int) -> None:
        in_order = self.clients.is_writing(request.origin.client) or request.verb == Verb.OPEN
        is_order = request.verb in (Verb.CHECKPOINT, Verb.SAVE, Verb.LOAD)
        if not in_order and not is_order and self._is_small(request):
            self._answer_read(to, request)
            return
        if not self._room.take(request_bytes):
            self._refuse(to, request)
            return
        job = Job(request, to, request_bytes)
        if is_order:
            self._orders.submit(job)
        elif in_order:
            self._writes.submit(job)
        else:
            self._reads.submit(job)

    def _is_small(self, request: Request) -> bool:
        if request.verb in LONG_READS:
            return False
        return not request.splits or request.splits[-1] <= SMALL_IDS

    def _refuse(self, to: object, request: Request) -> None:
        self.counters.add("busy")
        self._send(to, request.origin.sequence, Answer(request.verb, status=Status.BUSY))

    def _tell(self, verb: Verb) -> Answer:
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
        return Answer(verb, frames=[text_of(told)])

    def _health(self) -> dict[str, object]:
        state = "draining" if self.is_draining else "serving" if self.service.is_open else "empty"
        return {
            "name": self.name,
            "state": state,
            "rows": self.service.store.size() if self.service.is_open else 0,
            "waiting": self._room.waiting,
            "waiting_bytes": self._room.waiting_bytes,
            "answer_bytes": self._outflow.waiting_bytes,
            "clients": len(self.clients),
            "incarnation": self.incarnation,
        }

    # ---- work, in any thread

    def _answer_read(self, to: object, request: Request) -> None:
        for answer in self.service.read(request):
            self._send(to, request.origin.sequence, answer)

    def _read_group(self, jobs: list[Job]) -> None:
        for job in jobs:
            try:
                if job.is_late():
                    self.counters.add("late")
                else:
                    self._answer_in_parts(job.to, job.request)
            except Exception as error:  # a fault of ours must not end the thread
                self._fault(job, error)
            finally:
                self._room.give(job.room_bytes)

    def _answer_in_parts(self, to: object, request: Request) -> None:
        """No faster than clients take them; one that takes nothing asks again if it still lives."""
        parts = self.service.read(request)
        while self._outflow.has_room(OUT_PATIENCE_S):
            answer = next(parts, None)
            if answer is None:
                return
            for frame in answer.frames:
                if isinstance(frame, memoryview):
                    self._outflow.hold(frame, frame.nbytes)
            self._send(to, request.origin.sequence, answer)
            del answer  # else its memory would wait for the next
        self.counters.add("answers_dropped")

    def _write_group(self, jobs: list[Job]) -> None:
        # One hold over log and rows: a save in between would find the one without the other.
        with self._applying:
            wanted = [job for job in jobs if job.request.is_write or self._makes_tables(job)]
            refused = self._journalled(wanted)
            for job in jobs:
                try:
                    if refused is not None and job in wanted:
                        self._not_accepted(job, refused)
                    else:
                        self._do_in_order(job)
                except Exception as error:  # a fault of ours must not end the thread
                    self._fault(job, error)
                finally:
                    self._room.give(job.room_bytes)
            if self.keeper is not None:
                self.keeper.after_writes()

    def _journalled(self, jobs: list[Job]) -> LogError | None:
        if self._journal is None or not jobs:
            return None
        try:
            self._journal.append([[job.request.head(), *job.request.frames] for job in jobs])
        except LogError as error:
            self.counters.add("log_failures")
            return error
        except Exception as error:  # a fault of ours must not end the thread
            logging.getLogger("hedgerow").exception("server %s: a fault of the log", self.name)
            self.counters.add("faults")
            return LogError(f"the write was not accepted: {error!r}.")
        return None

    def _not_accepted(self, job: Job, error: LogError) -> None:
        answer = failure(job.request.verb, error)
        if job.request.is_write:
            self.clients.refuse(job.request.origin, answer)
        self._send(job.to, job.request.origin.sequence, answer)

    def _makes_tables(self, job: Job) -> bool:
        return job.request.verb == Verb.OPEN and not self.service.is_open

    def _do_in_order(self, job: Job) -> None:
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

    def _open(self, request: Request) -> Answer:
        try:
            open_tables(self.service, request)
            return Answer(Verb.OPEN, frames=[text_of(self.service.describe())])
        except HedgerowError as error:
            return failure(Verb.OPEN, error)

    def _order_group(self, jobs: list[Job]) -> None:
        for job in jobs:
            request = job.request
            try:
                if self.keeper is None:
                    raise StateError(f"server {self.name} keeps nothing; use --checkpoint.")
                order = value_of(request.frames[0]) if request.frames else {}
                if not isinstance(order, dict):
                    raise FrameError(f"an order that is a {type(order).__name__}, not an object.")
                told = self.keeper.serve(request.verb, order)
                answer = Answer(request.verb, frames=[text_of(told)])
                self._send(job.to, request.origin.sequence, answer)
            except HedgerowError as error:
                self._send(job.to, request.origin.sequence, failure(request.verb, error))
            except Exception as error:  # a fault of ours must not end the thread
                self._fault(job, error)
            finally:
                self._room.give(job.room_bytes)

    def _fault(self, job: Job, error: Exception) -> None:
        logging.getLogger("hedgerow").exception("server %s: a fault", self.name)
        self.counters.add("faults")
        answer = failure(job.request.verb, error)
        if job.request.is_write:
            self.clients.refuse(job.request.origin, answer)
        self._send(job.to, job.request.origin.sequence, answer)

    def is_idle(self) -> bool:
        """Whether everything that was accepted is done."""
        return self._writes.is_idle() and self._reads.is_idle() and self._orders.is_idle()

    def close(self) -> None:
        """Does what was accepted, then ends its threads."""
        for lane in (self._writes, self._reads, self._orders):
            lane.close()


def open_tables(service: Service, request: Request) -> None:
    """Makes the tables that a request brings, or proves that they are there."""
    document = value_of(request.frames[0]) if request.frames else None
    service.open(config_of(document))
