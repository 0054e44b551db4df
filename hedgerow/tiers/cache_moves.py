"""Moves rows into and out of a cache: fetches, evictions and write-backs.

Misses are read from the slow store without the lock of the cache. A read is correct as long as the
slow store has the newest values of every row that the reader asks for. Two rules ensure this:

- A row that was not resident when the reader began, and is written back later, was used in between.
  Each step, training lookup and prefetch advances a logical clock, and each cached row has the time
  of its last use. So rows last used before the reader began can be written back without a word.
- Any other row that is written back is logged for the reader (`WriteLog`), which reads it again.

That is why evictions choose rows by the time of their last use, and why they are given a time limit
(`since`) as well as an order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.counters import Counters
from ..core.errors import CacheTooSmallError
from ..core.ids import are_among
from ..core.shapes import Float32, Int64
from ..tables.host import HostTable
from ..tables.store import Entries, Missing
from ..tables.transfer import MovingRows, in_host
from .locks import ThreadStopper
from .residency_map import Ids, ResidencyMap
from .tier_pair import TierPair, put_entries, with_rows_of

if TYPE_CHECKING:
    from ..tables.device import DeviceTable
    from .device_residency import DeviceCacheMap
    from .eviction import PendingWriteBack


_IDLE_S = 1.0  # how long an idle thread is kept; starting a new one is slow
_CHUNK_ROWS = 8192  # written under one hold of the lock, which bounds the wait of a reader

# The most ids that are logged for one reader. Beyond that the log is dropped, and the reader
# discards all rows that it read. Without a limit, a batch that is prefetched and never looked up
# would fill the memory.
_LOGGED_ROWS = 1 << 22


class WriteBack:
    """A bounded queue of dirty rows in front of `slow`, written by its own thread.

    Owns the lock under which rows leave the queue. A row in the queue is newer than the same row in
    the slow store. A reader or writer of the slow store therefore holds the queue with `still`, or
    writes the rows first with `settle`. The thread ends a second after its last work, or with the
    process.

    Tables of a group also evict together, see `PendingWriteBack`. Those rows are still cached and
    not in the queue. `land` writes them to the slow store.
    """

    def __init__(self, slow: HostTable, room_rows: int, counters: Counters) -> None:
        self._slow, self._room, self._counters = slow, room_rows, counters
        # The queued rows are a small table: it finds them by id and reads them like other rows.
        self.queued = HostTable(replace(slow.config, admit=None, initial_capacity=1))
        self.order: deque[Int64[Tensor, "n"]] = deque()  # ids in the order of their writes
        self.pending: deque[PendingWriteBack] = deque()  # shared by the tables of a group
        self._changed = Condition()
        self.thread: Thread | None = None
        self._error: BaseException | None = None
        self._stopper = ThreadStopper(self, self._changed)

    def follow(self, pending: deque[PendingWriteBack]) -> None:
        """Takes the joint write-backs of a group of tables, which contain rows of this table."""
        self.pending = pending

    def land(self, since: int = 0) -> None:
        """Completes joint write-backs of the group.

        Completes all of them, or those with rows that may have been used at the time `since` or
        later.
        """
        for one in tuple(self.pending):
            if one.limit < since:
                continue
            one.land()
            with suppress(ValueError):  # another thread has removed it
                self.pending.remove(one)

    def put(self, rows: MovingRows) -> None:
        """Queues rows. Waits while the queue is full. Raises an error of the thread."""
        with self._changed:
            while self.queued.size() and self.queued.size() + len(rows) > self._room:
                self._raise_error()
                self.start()
                self._changed.wait()
            self._raise_error()
            self.order.extend(rows.ids.split(_CHUNK_ROWS))  # first: rows not in `order` would stay
            self.queued.move_in(rows)
            self.start()
            self._changed.notify_all()

    @contextmanager
    def still(self) -> Iterator[HostTable]:
        """Yields the queued rows. None of them reaches the slow store inside the block."""
        self.land()
        with self._changed:
            yield self.queued

    def take_back(self, ids: Int64[Tensor, "n"]) -> MovingRows:
        """Removes the queued ones of these ids from the queue and returns their rows."""
        self.land()
        with self._changed:
            rows = self.queued.read_out(ids)
            rows = rows.where(rows.found)
            self.queued.move_out(rows.ids)
            self._changed.notify_all()
            return rows

    def is_empty(self) -> bool:
        """Returns whether the queue is empty now. Other threads may fill it."""
        return not self.order

    def settle(self, ids: Int64[Tensor, "n"]) -> None:
        """Writes the queued ones of these ids to the slow store at once."""
        if self.is_empty():  # the most frequent case
            return
        with self._changed:
            if self.queued.size():
                self._write(ids)

    def flush(self) -> None:
        """Writes all queued rows to the slow store."""
        self.land()
        with self._changed:
            self._error = None  # a write that fails again raises here
            while self.order:
                self._write_next()

    def clear(self) -> None:
        """Discards all queued rows."""
        with self._changed:
            self.queued.clear()
            self.order.clear()
            self._changed.notify_all()

    # ---- the thread

    def start(self) -> None:
        """Starts the thread if there is work and none runs. The caller holds the queue's lock."""
        alive = self.thread is not None and self.thread.is_alive()
        if not alive and self.order:  # a thread may have failed to start, or ran before a fork
            self.thread = Thread(target=self._work, name="hedgerow write-back", daemon=True)
            self._stopper.start(self.thread)

    def _work(self) -> None:
        while self._work_on():
            pass

    def _work_on(self) -> bool:
        """Writes one chunk. Returns False if there was none for a second, or a write failed."""
        with self._changed:
            try:
                self._changed.wait_for(lambda: self.order or self._stopper.must_stop, _IDLE_S)
                if self.order and not self._stopper.must_stop:
                    self._write_next()
                    return True
            except BaseException as error:  # the rows stay; the next `put` or `flush` raises it
                self._error = error
                self._changed.notify_all()
            self.thread = None
            return False

    def _write_next(self) -> None:
        self._write(self.order[0])
        self.order.popleft()

    def _write(self, ids: Int64[Tensor, "n"]) -> None:
        rows = self.queued.read_out(ids)
        rows = rows.where(rows.found)
        if len(rows):
            self._slow.move_in(rows)
            self.queued.move_out(rows.ids)
            self._counters.add("write_backs", len(rows))
        self._changed.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


@dataclass(slots=True, eq=False)
class LogReader:
    """One reader behind caches, with the ids that were written since it began, by cache."""

    era: int  # of the log when the reader began; another era now: discard all rows that were read
    since: int  # the reader needs no row that was last used before this time
    log: list[tuple[object, Ids]] = field(default_factory=list)
    rows: int = 0  # in the log


class WriteLog:
    """Logs which rows are written behind caches while readers without the lock read them.

    Caches that step together share one log, as they share one lock. The caller holds that lock.
    Only `end` may be called by any thread, any number of times.
    """

    def __init__(self) -> None:
        self.readers: set[LogReader] = set()
        self._era = 0  # how often all rows of a cache were replaced

    def __len__(self) -> int:
        return len(self.readers)

    def begin(self, since: int = 0) -> LogReader:
        """Starts to log for a reader.

        A reader that needs only rows that were not cached at the time `since` needs no entries for
        rows that were last used before `since`.
        """
        reader = LogReader(self._era, since)
        self.readers.add(reader)
        return reader

    def end(self, reader: LogReader) -> None:
        """Ends the log of a reader."""
        self.readers.discard(reader)

    def write(self, cache: object, ids: Ids) -> None:
        """Logs that rows of these ids are written behind a cache."""
        readers = tuple(self.readers)  # other threads may end their readers meanwhile
        if not readers or not len(ids):
            return
        ids = ids.copy()  # the caller may change them
        for reader in readers:
            reader.log.append((cache, ids))
            reader.rows += len(ids)
            if reader.rows > _LOGGED_ROWS:
                self.end(reader)
                reader.log.clear()

    def replaced(self) -> None:
        """Logs that all rows of a cache were replaced: no row that was read before is valid."""
        self._era += 1

    def since(self) -> int | None:
        """Returns a time; rows last used before it may leave without a log entry.

        None: any row may leave without one.
        """
        return min((reader.since for reader in tuple(self.readers)), default=None)

    def is_written(self, reader: LogReader) -> bool:
        """Returns whether anything was written since the reader began."""
        return bool(reader.log) or reader.era != self._era or reader not in self.readers

    def keep_unchanged(self, reader: LogReader, cache: object, ids: Ids, which: np.ndarray) -> None:
        """Clears `which` for those of a cache's ids that were written since the reader began."""
        if reader.era != self._era or reader not in self.readers:
            which[:] = False
            return
        written = [own for other, own in reader.log if other is cache]
        if written:
            which &= ~are_among(ids, np.concatenate(written))


def no_rows() -> Int64[Tensor, "0"]:
    """Returns an empty tensor of ids."""
    return torch.empty(0, dtype=torch.int64)


_EVICT_FRAC = 32  # a device cache evicts at least 1/32 of its rows at once


@dataclass(slots=True, eq=False)
class LruClock:
    """The number of updates, lookups for training and prefetches so far, as the time of a use.

    Caches that step together share one clock.
    """

    now: int = 0


class CacheMoves:
    """Moves rows between the two stores of a cache; `RowState` lists the states of a row.

    The slow store has a row for every id. The newest values of a row are in the cache if the row is
    resident, else in the write-back queue if it is in flight, else in the slow store. This is the
    `SlowTier` of a `CachingTable`: it reads rows that are not resident.
    """

    def __init__(self, pair: TierPair, allow_small: bool, queue_rows: int | None) -> None:
        self.pair = pair
        self.allow_small = checks.flag("allow_small", allow_small)
        queue = pair.resident.rows if queue_rows is None else queue_rows
        room = checks.count("queue_rows", queue, least=1)
        self.write_back = WriteBack(pair.slow, room, pair.counters)
        self.clock = LruClock()
        self.log = WriteLog()  # ids written behind the cache, for readers without the lock

    @property
    def resident(self) -> ResidencyMap | DeviceCacheMap:
        """The map of cached rows."""
        found: Any = self.pair.resident
        return found

    def share(self, other: CacheMoves) -> None:
        """Takes the clock and the log of another cache, with which this cache steps."""
        self.clock, self.log = other.clock, other.log

    # ---- reads behind the cache, as `SlowTier`

    def read(
        self,
        ids: Int64[Tensor, "n"],
        missing: Missing,
        step: int | None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Float32[Tensor, "n dim"]:
        """Returns the rows of ids that are not cached."""
        # The caller shares `move_lock`: no more rows leave the cache while this reads the queue.
        with self.write_back.still() as in_flight:
            here = _present(in_flight, ids)
            rows = in_flight.lookup(ids[here], step=step).rows_of() if len(here) else None
        found = self.pair.slow.lookup(ids, missing=missing, step=step, out=out).rows_of()
        if rows is not None:
            found[here] = rows
        return found

    def entries(self, ids: Int64[Tensor, "n"]) -> Entries:
        """Returns whole rows of ids that are not cached."""
        with self.write_back.still() as in_flight:
            here = _present(in_flight, ids)
            newer = in_flight.entries(ids[here])
        return put_entries(self.pair.slow.entries(ids), here, newer)

    def next_slice(self, slices: Iterator[Entries]) -> Entries | None:
        """Returns the next slice of a scan of the slow store, with the newest row values."""
        with self.pair.move_lock.shared, self.write_back.still() as in_flight:
            found = next(slices, None)
            if found is None:
                return None
            if in_flight.size():
                where = in_flight.contains(found.ids).nonzero()[:, 0]
                found = with_rows_of(found, where, in_flight)
            return self.pair.with_resident_rows(found)

    def prepare_write(self, ids: Int64[Tensor, "n"]) -> None:
        """Logs a write behind the cache. Writes rows in flight to the slow store first."""
        self.log_written(ids.numpy())
        self.write_back.settle(ids)

    def mark_dirty(self, slots: Ids) -> None:
        """Marks resident rows before they change, since a call can fail part way."""
        self.resident.set_dirty(slots, True)

    @contextmanager
    def logged(self) -> Iterator[LogReader]:
        """Logs the ids written behind the cache inside the block, for a read without the lock."""
        with self.pair.write_lock:
            reader = self.log.begin()
        try:
            yield reader
        finally:
            self.log.end(reader)

    def log_written(self, ids: Ids) -> None:
        """Logs that rows of these ids change behind the cache."""
        self.log.write(self, ids)

    # ---- rows are fetched

    def check_distinct(self, distinct: Ids) -> None:
        """Raises if a step has more distinct ids than the cache has rows."""
        if len(distinct) > self.resident.rows and not self.allow_small:
            raise CacheTooSmallError(
                f"table {self.pair.config.name!r}: a step has {len(distinct)} distinct keys, but "
                f"the cache holds at most {self.resident.rows} rows. Make the cache larger or the "
                f"batch smaller, or set allow_small=True: rows that do not fit are then read and "
                f"written in the slow store each time."
            )

    def fetch(self, distinct: Ids, known: MovingRows | None = None) -> None:
        """Fetches the rows of these ids into the cache. The caller holds the write lock.

        `known` are rows that were read before and have not changed since.
        """
        self.clock.now += 1
        missing, hits = self.missing(distinct)
        self.resident.mark_used(hits, self.clock.now)
        if len(missing):
            missing = missing[: self.room_for(missing, hits)]
            needed = len(missing) - self.resident.free
            going = self.resident.coldest(needed, hits, self.clock.now) if needed > 0 else hits[:0]
            self._bring(missing, going, known)

    def missing(self, distinct: Ids) -> tuple[Ids, Ids]:
        """Returns the ids whose rows exist but are not cached, and the slots of the cached ones."""
        at = self.resident.find(distinct)
        missing = distinct[at < 0]
        if len(missing):
            missing = missing[self.pair.slow.contains(torch.from_numpy(missing)).numpy()]
        return missing, at[at >= 0]

    def room_for(self, missing: Ids, hits: Ids) -> int:
        """Returns how many missing rows can be fetched while `hits` and pinned rows stay."""
        room = self.resident.unpinned(hits)
        if len(missing) > room and not self.allow_small:
            raise CacheTooSmallError(
                f"table {self.pair.config.name!r}: {len(missing)} rows must be fetched into the "
                f"cache, but of its {self.resident.rows} rows only {room} are not held by this "
                f"step or by prefetched batches. Release batches, prefetch fewer, or make the "
                f"cache larger."
            )
        return min(room, len(missing))

    def _bring(self, ids: Ids, going: Ids, known: MovingRows | None) -> None:
        """Fetches rows that are not cached, after evicting the rows at the slots `going`."""
        asked, slow = torch.from_numpy(ids), self.pair.slow
        with self.write_back.still() as in_flight:
            late = in_flight.contains(asked)  # the slow store has old values of these
        parts = [_read_unknown(slow, asked[~late], known)]
        with self.pair.move_lock.alone():
            if len(going):
                self.drop(going)
                self.pair.counters.add("cache_evictions", len(going))
            with self.write_back.still() as in_flight:
                dirty = in_flight.read_out(asked[late])
                parts.append(slow.read_out(asked[late][~dirty.found]))  # written back meanwhile
                dirty = dirty.where(dirty.found)
                self._put(MovingRows.joined(parts), is_dirty=False)
                self._put(dirty, is_dirty=True)
                in_flight.move_out(dirty.ids)
        self.pair.counters.add("fetches", len(ids))

    def _put(self, rows: MovingRows, *, is_dirty: bool) -> None:
        if not len(rows):
            return
        resident = self.resident
        try:
            placed = self.pair.fast.move_in(rows).cpu()
            at = resident.add(rows.ids[placed].numpy())
        except BaseException:
            resident.may_have_come(len(rows))
            resident.mend(resident.find(rows.ids.numpy()), self.clock.now)
            raise
        resident.mark_used(at, self.clock.now)
        resident.set_dirty(at, is_dirty)
        if is_dirty and not bool(placed.all()):
            self.pair.slow.move_in(rows.where(~placed))

    # ---- rows are evicted

    def make_room(self, rows: int) -> int:
        """Evicts rows of a device cache until `rows` rows can be fetched. Returns how many can.

        It evicts many rows at once: finding the least recently used takes as long for one as for
        many.
        """
        resident = self.resident
        assert not isinstance(resident, ResidencyMap)
        if resident.have_room(rows):
            return rows
        needed = max(rows - resident.free, resident.rows // _EVICT_FRAC)
        going = resident.oldest(needed, self.clock.now)
        if len(going):
            with self.pair.move_lock.alone():
                self.drop(going)
            self.pair.counters.add("cache_evictions", len(going))
        return min(rows, resident.free)

    def drop(self, slots: Any) -> None:
        """Evicts the rows at `slots`. Dirty rows go to the write-back queue.

        The slots of a device cache may be a tensor on the device.
        """
        self.write_back.land()  # a row that is clean now may still be in flight
        ids, dirty = self.resident.ids_and_dirty(slots)
        if len(dirty):
            rows = in_host(self.pair.fast.read_out(dirty))
            self.log_written(rows.ids.numpy())
            self.write_back.put(rows)
        # The map changes first. If this fails in between, copies stay that no call reads. A slot
        # in the map without its row would be read as zeros.
        self._forget(slots, ids)

    def remove(self, ids: Int64[Tensor, "n"]) -> None:
        """Removes rows that the slow store no longer has from the cache and from the queue."""
        self.log_written(ids.numpy())
        self.write_back.take_back(ids)
        at = np.unique(self.resident.find(ids.numpy()))
        at = at[at >= 0]
        self._forget(at, torch.from_numpy(self.resident.ids_at(at)))

    def _forget(self, slots: Any, ids: Int64[Tensor, "n"]) -> None:
        self.resident.remove(slots)
        try:
            self.pair.fast.move_out(ids)
        except BaseException:
            self.resident.mend(slots, self.clock.now)
            raise

    def remove_orphans(self) -> None:
        """Removes cached rows that the slow store no longer has."""
        cached = torch.from_numpy(self.resident.ids_at(self.resident.at()))
        self.remove(cached[~self.pair.slow.contains(cached)])

    def flush(self) -> None:
        """Writes every change to the slow store. Rows stay cached. The caller holds the lock."""
        self.write_back.flush()
        at = self.resident.dirty()
        if len(at):
            ids = self.resident.ids_at(at)
            self.log_written(ids)
            self.write_back.put(in_host(self.pair.fast.read_out(torch.from_numpy(ids))))
            self.write_back.flush()
            self.resident.set_dirty(at, False)


def cache_map(fast: HostTable | DeviceTable, rows: int) -> ResidencyMap | DeviceCacheMap:
    """Returns an empty map of cached rows, in the memory of the fast store."""
    if isinstance(fast, HostTable):
        return ResidencyMap(rows)
    from .device_residency import DeviceCacheMap

    return DeviceCacheMap(fast, rows)


def _read_unknown(slow: HostTable, ids: Int64[Tensor, "n"], known: MovingRows | None) -> MovingRows:
    """Returns rows of the slow store, and reads only those that are not `known`."""
    if known is None or not len(known):
        return slow.read_out(ids)
    have = torch.isin(ids, known.ids)
    use = torch.isin(known.ids, ids)
    return MovingRows.joined([known.where(use), slow.read_out(ids[~have])])


def _present(table: HostTable, ids: Int64[Tensor, "n"]) -> Int64[Tensor, "m"]:
    """Returns the positions of the ids that a table has."""
    return table.contains(ids).nonzero()[:, 0] if table.size() else no_rows()
