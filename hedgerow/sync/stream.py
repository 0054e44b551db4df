"""Sends the rows of one source to one served model: all rows once, then the changes in order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

from torch import Tensor

from ..core.errors import ConfigError
from ..core.shapes import Int64
from ..tables.changes import TouchedBatch
from .link import ReplicaLink, TargetError
from .pending import KeyBatch, Pass, PendingKeys
from .protocol import ATTACH, BEAT, GONE, REPLICA_SERVICE, SWEEP, ServedModel
from .pushes import InFlightPushes, Observe, RowPush, parts_of, pushes_of
from .source import RowSource

T = TypeVar("T")


class BackgroundIterator(Generic[T]):
    """Yields items in order and produces one item ahead in a thread. Use it in a `with` block.

    At most one item waits besides the one that the caller has. An exception of the iterator is
    raised in place of its item. Leaving the block waits for the item in production, and the source
    is not read afterwards.

    >>> with BackgroundIterator(iter("abc")) as items:
    ...     list(items)
    ['a', 'b', 'c']
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._wanted = threading.Semaphore(1)
        self._made: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()  # None: the end
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="make ahead", daemon=True)

    def __iter__(self) -> Iterator[T]:
        while (made := self._made.get()) is not None:
            if isinstance(made, BaseException):
                raise made
            self._wanted.release()
            yield made[0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._wanted.release()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wanted.acquire() and not self._closed:
                for item in self._items:
                    self._made.put((item,))
                    break
                else:
                    self._made.put(None)
                    return
        except BaseException as error:  # of any kind: it is raised in the waiting thread
            self._made.put(error)


_log = logging.getLogger("hedgerow")
_BEAT_S = 0.1  # between two heartbeats without changes
_LOST_CODES = (GONE, "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED")
_SHARE = 4  # parts of a full sync between two sends of changes
Phase = Literal["away", "full", "sweep", "live"]


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The progress of one source at one served model.

    `oldest_s` is the age of its oldest missing change.

    `unswept` is true if the replica kept rows that the source does not have, because the source
    seems to have lost its own rows: a full sync found none, or the server was restarted without
    any.
    """

    model: str
    shard: int
    phase: Phase
    seq: int
    pending_rows: int
    oldest_s: float
    full_syncs: int
    retried_rows: int
    unswept: bool


class Stream:
    """The rows of one source on their way to one loaded model at one address.

    One thread calls `advance`; `add` may be called from any thread. A stream starts a session at
    the replica and sends all rows. Then the replica removes the rows that were not sent, which is
    called the sweep. Afterwards the stream sends the changes. If the replica does not know the
    session, it has lost rows, and the stream starts again.
    """

    def __init__(
        self,
        source: RowSource,
        served: ServedModel,
        *,
        publisher: str,
        most_pending: int,
        timeout_s: float,
        observe: Observe,
    ) -> None:
        _check_tables(source, served)
        self.source, self.served = source, served
        self.applied = 0  # the last pass whose changes the replica has in full
        self._publisher, self._timeout_s, self._observe = publisher, timeout_s, observe
        self._dims = dict(served.tables)
        self._pending = PendingKeys(most_pending)
        self._sending: KeyBatch | None = None
        self._flights: InFlightPushes | None = None  # of the session; None without one
        self._scan: Iterator[dict[str, Tensor]] | None = None
        self._held: list[dict[str, Tensor]] = []  # parts of the scan that are not answered yet
        self._sweep: dict[str, int] = {}  # tables to be swept, with the cursor of each
        self._full_syncs = self._retried = self._scanned = self._there = 0
        self._unswept = False
        self._next_beat_s = 0.0
        self._behind_s = time.monotonic()  # when the stream was last live

    # ---- called by the thread that looks for changes

    def add(self, taken: Mapping[str, TouchedBatch], found_by: Pass) -> None:
        """Adds the keys that a pass found."""
        if any(taken[t].whole_table for t in self._dims if t in taken):
            self.restart(found_by)
            return
        ids = {t: self.served.owned(t, taken[t].ids) for t in self._dims if t in taken}
        self._pending.add(ids, found_by)

    def restart(self, found_by: Pass) -> None:
        """Makes the stream send all rows again, because marks were lost."""
        self._pending.shut()
        self._pending.add({}, found_by)

    # ---- called by the thread that sends

    def advance(self, link: ReplicaLink) -> bool:
        """Sends the pending keys and a part of a full sync.

        Returns whether more is left to send.
        """
        if self._flights is None or not self._pending.collects:
            self._attach(link)
        self._send_pending(link)
        if self._scan is not None:
            self._send_share(link)
        elif self._sweep:
            self._sweep_share(link)
        return self._scan is not None or bool(self._sweep)

    def failed(self, error: Exception) -> None:
        """Handles an error of `advance`: pushes without an answer will be sent again."""
        if self._flights is not None:
            self._flights.give_up()
        if self._sending is not None:
            self._retried += len(self._sending)
            self._pending.put_back(self._sending)
            self._sending = None
        if isinstance(error, TargetError) and error.code in _LOST_CODES:
            if self._phase() == "live":
                self._behind_s = time.monotonic()
            self._flights = None

    def status(self) -> StreamStatus:
        """Returns the progress of the stream."""
        sending = self._sending
        marks = [
            self._pending.since_s,
            None if sending is None else sending.since_s,
            None if self._phase() == "live" else self._behind_s,
        ]
        since = [mark for mark in marks if mark is not None]
        oldest_s = max(0.0, time.monotonic() - min(since)) if since else 0.0
        waiting = len(self._pending) + (len(sending) if sending is not None else 0)
        return StreamStatus(
            self.served.name,
            self.source.shard,
            self._phase(),
            0 if self._flights is None else self._flights.seq,
            waiting,
            oldest_s,
            self._full_syncs,
            self._retried,
            self._unswept,
        )

    def _phase(self) -> Phase:
        if self._flights is None:
            return "away"
        if self._scan is not None:
            return "full"
        return "sweep" if self._sweep else "live"

    # ---- helpers

    def _attach(self, link: ReplicaLink) -> None:
        """Starts a new session. Changes are collected from before its first row."""
        if self._phase() == "live":
            self._behind_s = time.monotonic()
        self._flights, self._scan, self._held, self._sweep = None, None, [], {}
        source = self.source
        routers = {t.name: t.router.to_dict() for t in source.tables if t.name in self._dims}
        answer = link.ask(
            REPLICA_SERVICE,
            ATTACH,
            {
                "model": self.served.name,
                "incarnation": self.served.incarnation,
                "publisher": self._publisher,
                "shard": source.shard,
                "shards": source.shards,
                "routers": routers,
            },
            self._timeout_s,
        )
        self._pending.open()
        self._flights = InFlightPushes(
            str(answer["session"]),
            self.served.name,
            (self._publisher, source.shard),
            timeout_s=self._timeout_s,
            observe=self._observe,
        )
        self._scan, self._scanned, self._there = self._all_parts(), 0, int(answer["rows"])
        self._full_syncs += 1

    def _all_parts(self) -> Iterator[dict[str, Int64[Tensor, "n"]]]:
        for table in self._dims:
            for ids in self.source.all_ids(table):
                self._scanned += len(ids)
                yield from parts_of({table: self.served.owned(table, ids)}, self._dims)

    def _send_share(self, link: ReplicaLink) -> None:
        try:
            self._held = self._held or list(islice(self._scan or (), _SHARE))
        except Exception:
            # A failed scan cannot continue, and its end would look like the end of all rows:
            # the sweep would then remove the rows that it did not reach.
            self._flights = None
            raise
        if not self._held:
            self._scan = None
            self._begin_sweep(link.address)
            return
        self._send(link, self._held)
        self._held = []

    def _begin_sweep(self, address: str) -> None:
        """Starts to remove unsent rows from the replica, unless the source has lost its rows."""
        lost = self.source.lost_rows or not self._scanned
        self._unswept = lost and self._there > 0
        if not lost:
            self._sweep = dict.fromkeys(self._dims, 0)
        elif self.source.lost_rows:
            _log.warning(
                "shard %d of the trainer was restarted without rows; %s keeps those that it has "
                "until rows are loaded there.",
                self.source.shard,
                address,
            )

    def _sweep_share(self, link: ReplicaLink) -> None:
        table, cursor = next(iter(self._sweep.items()))
        asked = self._place() | {"table": table, "cursor": str(cursor)}
        answer = link.ask(REPLICA_SERVICE, SWEEP, asked, self._timeout_s)
        self._sweep[table] = int(answer["cursor"])
        if answer["done"]:
            del self._sweep[table]

    def _send_pending(self, link: ReplicaLink) -> None:
        batch = self._sending = self._pending.take()
        self._send(link, parts_of(batch.ids, self._dims))
        if self._phase() == "live" and batch.upto is not None:
            self._beat(link, batch.upto.began_s, at_once=len(batch) > 0)
            self.applied = batch.upto.number
        self._sending = None

    def _send(self, link: ReplicaLink, parts: Iterable[Mapping[str, Tensor]]) -> None:
        """Sends keys and waits for all answers.

        The next rows are read while pushes are in flight.
        """
        assert self._flights is not None
        left = iter(parts)
        for push in self._pushes(islice(left, 1)):
            self._flights.send(link, push)
        second = list(islice(left, 1))
        if second:  # most batches have one part and need no thread
            with BackgroundIterator(self._pushes(chain(second, left))) as pushes:
                for push in pushes:
                    self._flights.send(link, push)
        self._flights.land_all()

    def _pushes(self, parts: Iterable[Mapping[str, Tensor]]) -> Iterator[RowPush]:
        tables, model = [*self._dims], self.served.name
        for part in parts:
            yield from pushes_of(self.source, model, tables, self._dims, part)

    def _beat(self, link: ReplicaLink, began_s: float, *, at_once: bool) -> None:
        """Tells the replica that it has all changes, and raises if it does not know the session."""
        now_s = time.monotonic()
        if now_s < self._next_beat_s and not at_once:
            return
        asked = self._place() | {"lag_s": now_s - began_s}
        link.ask(REPLICA_SERVICE, BEAT, asked, self._timeout_s)
        self._next_beat_s = now_s + _BEAT_S

    def _place(self) -> dict[str, object]:
        session = None if self._flights is None else self._flights.session
        return {"model": self.served.name, "session": session, "shard": self.source.shard}


def fits(source: RowSource, served: ServedModel) -> bool:
    """Returns whether the source has every served table."""
    dims = {table.name: table.dim for table in source.tables}
    return all(dims.get(name) == dim for name, dim in served.tables.items())


def _check_tables(source: RowSource, served: ServedModel) -> None:
    if fits(source, served):
        return
    dims = {table.name: table.dim for table in source.tables}
    for name, dim in served.tables.items():
        if dims.get(name) != dim:
            raise ConfigError(
                f"model {served.name} serves table {name!r} of dim {dim}; the trainer has "
                f"{dims or 'no tables'}. Serve a model that was exported from this trainer."
            )
