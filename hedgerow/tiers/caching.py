"""CACHING: the slow store has every row, and a cache of fixed size has copies of rows in use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Condition, Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.errors import CacheTooSmallError
from ..core.ids import are_among, distinct_ids
from ..core.shapes import Bool, Float32, Float64, Int8, Int64
from ..tables import arguments
from ..tables.changes import DEFAULT_CAPACITY, Overflow
from ..tables.eviction import Evicted, EvictionOrder
from ..tables.host import HostTable
from ..tables.local_table import MemoryUse
from ..tables.optimizers import Rate
from ..tables.store import PLAIN, Applied, Entries, Lookup, Missing, TableKeys, UpdatePolicy, summed
from .cache_moves import CacheMoves, cache_map
from .locks import ThreadStopper
from .residency_map import Ids, RowState
from .tier_pair import (
    ChangeFeeds,
    TierPair,
    TierRows,
    TierSnapshot,
    TierTouched,
    not_copied,
    open_snapshot,
)

if TYPE_CHECKING:
    from ..tables.device import DeviceTable

_IDLE_S = 1.0  # the prefetcher's thread ends after this time without work
_MOVED = ("fetches", "cache_evictions", "write_backs", "prefetches", "late_prefetches")


class CachingTable:
    """A table with all its rows in a `slow` store, behind a cache of `cache_rows`.

    A lookup for training or an update fetches the rows it needs into the cache. The least recently
    used rows are evicted. A thread writes dirty rows back to the slow store, with at most
    `queue_rows` in flight (by default `cache_rows`). New rows are inserted in the slow store.
    `prefetch` fetches and pins the rows of a later batch while training continues. `flush` writes
    all changes back.

    A call that needs more distinct rows than the cache has is refused. With `allow_small`, the rows
    that do not fit are read and written in the slow store each time.

    Its parts: `pair` (the two stores and their locks), `moves` (fetching, evicting, writing back),
    `rows` (reads and writes of rows), `feeds` (consumers of changed keys), `prefetcher`.

    >>> from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
    >>> config = TableConfig("user", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> table = CachingTable(HostTable(config), HostTable(config), cache_rows=2)
    >>> one, two = torch.tensor([1]), torch.tensor([2, 3])
    >>> for ids in (one, one, two, two):
    ...     _ = table.apply_gradients(ids, torch.ones(len(ids), 1))
    >>> table.flush()
    >>> table.slow.lookup(torch.tensor([1, 2, 3])).rows.tolist()
    [-2.0, -2.0, -2.0]
    >>> [int(table.stats()[name]) for name in ("fetches", "write_backs", "cache_evictions")]
    [3, 3, 1]
    """

    def __init__(
        self,
        fast: HostTable | DeviceTable,
        slow: HostTable,
        *,
        cache_rows: int,
        allow_small: bool = False,
        queue_rows: int | None = None,
    ) -> None:
        self.pair = TierPair(fast, slow, cache_rows, cache_map)
        self.fast, self.slow = fast, slow
        self.config, self.layout = self.pair.config, self.pair.layout
        self.counters = self.pair.counters
        self.moves = CacheMoves(self.pair, allow_small, queue_rows)
        self.resident = self.moves.resident
        self.rows = TierRows(self.pair, self.moves)
        self.feeds = ChangeFeeds(self.pair)
        self.prefetcher = Prefetcher(self._fetch_ahead)

    def __repr__(self) -> str:
        return self.pair.description("CachingTable")

    def __reduce__(self) -> str:
        raise not_copied(self.config.name)

    def __len__(self) -> int:
        return self.size()

    @property
    def device(self) -> torch.device:
        """The device of keys and rows of calls."""
        return self.fast.device

    @property
    def filter(self) -> Any:
        """The filter that counts absent ids for the admission rule; None without such a rule."""
        return self.slow.filter

    @property
    def order(self) -> EvictionOrder | None:
        """The order in which rows are evicted; None without a rule of size (`Lru`, `Lfu`)."""
        return self.slow.order

    def table(self, k: int = 0) -> CachingTable:
        """Returns the store of table `k` alone, which is this table."""
        arguments.table_number(k, 1)
        return self

    # ---- reads

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Lookup:
        """Returns the rows of `keys`, in `out` if given. Inserts nothing.

        With `missing="training"` the rows are fetched into the cache, since an update follows.
        """
        keys = self.pair.keys(keys)
        if missing == "training":
            distinct = torch.unique(keys.ids.cpu()).numpy()
            self.await_prefetches(distinct)
            with self.pair.write_lock:
                self.moves.check_distinct(distinct)
                self.moves.fetch(distinct)
        return self.rows.lookup(keys, missing, step, out)

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
        return self.rows.contains(keys)

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Returns whole rows with their optimizer states and times."""
        return self.rows.entries(keys)

    def uses(self, keys: TableKeys | Int64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """Returns how often each key was used, under an `Lfu` rule; as `HostTable.uses`."""
        return self.pair.uses(self.rows.entries(keys))

    def row_states(self, ids: Int64[Tensor, "n"]) -> list[RowState]:
        """Returns the state of each id's row in the cache."""
        with self.pair.move_lock.shared, self.moves.write_back.still() as in_flight:
            at = self.resident.find(ids.cpu().numpy())
            dirty = set(self.resident.dirty().tolist())
            leaving = in_flight.contains(ids.cpu()).tolist()
        return [
            RowState.of(resident=slot >= 0, is_dirty=slot in dirty, in_flight=flying)
            for slot, flying in zip(at.tolist(), leaving, strict=True)
        ]

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows in slices, each row once; as `HostTable.scan`."""
        slices = self.slow.scan(rows)
        while (found := self.moves.next_slice(slices)) is not None:
            yield found.to(self.device)

    def size(self) -> int:
        """Returns the number of rows."""
        return self.slow.size()

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes."""
        return self.pair.max_ts()

    def memory(self) -> MemoryUse:
        """Returns bytes of both tiers by purpose. The residency map counts as index."""
        return self.pair.memory(self.resident.nbytes())

    def device_bytes(self) -> int:
        """Returns bytes on the device in addition to those of the fast table."""
        return 0 if isinstance(self.fast, HostTable) else self.resident.nbytes()

    def stats(self) -> dict[str, float]:
        """Returns the statistics of one table, summed over both tiers, and those of the cache."""
        self.moves.write_back.land()  # this counts write-backs
        for name, rows in zip(
            ("fetches", "cache_evictions"), self.resident.take_moved(), strict=True
        ):
            self.counters.add(name, rows)
        return {
            **self.pair.stats(self.size(), self.resident.nbytes()),
            "dirty_rows": len(self.resident.dirty()),
            **self.pair.counts(_MOVED),
        }

    # ---- later batches

    def prefetch(self, keys: TableKeys | Int64[Tensor, "n"]) -> Prefetched:
        """Starts to fetch the rows of a later batch. They are pinned until the batch is released.

        The distinct keys of all batches that are not released must fit into the cache.
        """
        distinct = torch.unique(self.pair.keys(keys).ids.cpu()).numpy()
        batch = Prefetched(distinct, self._release)
        too_many = self.prefetcher.add(batch, self.resident.rows)
        if too_many is not None:
            raise CacheTooSmallError(
                f"table {self.config.name!r}: prefetched batches that are not released and this "
                f"one have {too_many} distinct keys, but the cache holds at most "
                f"{self.resident.rows} rows. Prefetch fewer batches, release them earlier, or make "
                f"the cache larger."
            )
        return batch

    def _fetch_ahead(self, batch: Prefetched) -> None:
        """Reads the rows of a batch without the write lock, then moves them into the cache.

        Runs in the prefetcher's thread.
        """
        moves, resident = self.moves, self.resident
        with moves.logged() as reader:
            with self.pair.move_lock.shared:
                missing = torch.from_numpy(batch.ids[resident.find(batch.ids) < 0])
                with moves.write_back.still() as in_flight:
                    missing = missing[~in_flight.contains(missing)]
            known = self.slow.read_out(missing)
            known = known.where(known.found)
            with self.pair.write_lock:
                same = torch.ones(len(known), dtype=torch.bool)
                moves.log.keep_unchanged(reader, moves, known.ids.numpy(), same.numpy())
                moves.fetch(batch.ids, known.where(same))
                at = resident.find(batch.ids)
                batch.slots = at[at >= 0]
                batch.stays = resident.pin(batch.slots)
                batch.is_pinned = True
        self.counters.add("prefetches", len(batch.ids))

    def _release(self, batch: Prefetched) -> None:
        if not self.prefetcher.remove(batch):
            return
        with self.pair.write_lock:
            if batch.is_pinned:
                self.resident.unpin(batch.slots, batch.stays)

    def await_prefetches(self, distinct: Ids) -> None:
        """Waits for prefetched batches that fetch rows of these ids and have not finished."""
        batches = self.prefetcher.under_way()
        if not batches:
            return
        with self.pair.move_lock.shared:
            # The ids of a group of tables may repeat.
            missing = distinct_ids(distinct[self.resident.find(distinct) < 0])
        for batch in batches:
            late = int(are_among(missing, batch.ids).sum())
            if late:
                self.counters.add("late_prefetches", late)
                batch.wait()

    # ---- updates

    def apply_gradients(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
        policy: UpdatePolicy = PLAIN,
    ) -> Applied:
        """Makes one optimizer step per distinct id, with its summed gradient; inserts absent ids.

        As `HostTable.apply_gradients`. The rows are fetched into the cache first.
        """
        checks.flag("per_occurrence", per_occurrence)
        keys = self.pair.keys(at.keys if isinstance(at, Lookup) else at)
        if policy.clip is not None:
            one = summed(keys, grads, counts, (self.config.dim,)).clipped(policy.clip)
            keys, grads, counts = one.keys, one.grads, one.counts
        self.check_update(keys.ids, grads, rates, step, counts)
        ids = keys.ids.cpu()
        settings = {"rates": rates, "step": step, "per_occurrence": per_occurrence}
        distinct = torch.unique(ids).numpy()
        self.await_prefetches(distinct)
        with self.pair.write_lock:
            self.moves.check_distinct(distinct)
            self.moves.fetch(distinct)
            return self.rows.write("apply_gradients", ids, grads, ts, counts, **settings)

    def check_update(
        self,
        ids: Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        rates: Sequence[Rate] | None,
        step: int | None,
        counts: Int64[Tensor, "n"] | None,
    ) -> None:
        """Raises on arguments that `apply_gradients` refuses."""
        self.rows.check_update(ids, grads, rates, step, counts)
        self.check_room(ids, step)

    def check_room(self, ids: Int64[Tensor, "n"], step: int | None) -> None:
        """Raises if the rows of an update do not fit into the cache, or if its step is missing."""
        self.rows.check_step(step)
        self.check_distinct(ids)
        if self.prefetcher.is_outstanding() and not self.moves.allow_small:
            distinct = torch.unique(ids).cpu().numpy()
            with self.pair.move_lock.shared:
                self.moves.room_for(*self.moves.missing(distinct))

    def check_distinct(self, ids: Int64[Tensor, "n"]) -> None:
        """Raises if a call has more distinct ids than the cache has rows."""
        if len(ids) > self.resident.rows:
            self.moves.check_distinct(torch.unique(ids).cpu().numpy())

    # ---- other writes

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows and keeps optimizer states, fresh for absent ids. The last equal key wins."""
        return self.rows.set("assign", keys, rows, ts)

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows. An absent row starts from its first value."""
        return self.rows.set("assign_add", keys, rows, ts)

    def restore(self, entries: Entries) -> Applied:
        """Restores whole rows, with states and times, as `entries` or `scan` returned them."""
        return self.rows.restore(entries)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Gives rows their first values, at the clock's time; 0 = was absent, 1 = was there."""
        return self.rows.reinitialize(keys)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and returns which of them existed."""
        ids = self.pair.keys(keys).ids.cpu()
        pair, moves = self.pair, self.moves
        with pair.write_lock, pair.move_lock.alone(), moves.write_back.still():
            try:
                erased = self.slow.erase(ids)
                moves.remove(ids)
            except BaseException:
                moves.remove(ids[~self.slow.contains(ids)])
                raise
        return erased.to(self.device)

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows that the table's eviction rule selects; as `HostTable.evict`."""
        checks.flag("capture", capture)
        with self.pair.write_lock, self.pair.move_lock.alone():
            self.moves.flush()
            now_s = self.pair.reference_s(now_s)
            try:
                found = self.slow.evict(now_s=now_s, capture=True, rows=rows)
                assert found.ids is not None
                self.moves.remove(found.ids)
            except BaseException:
                self.moves.remove_orphans()
                raise
        return found if capture else Evicted(found.rows)

    def flush(self) -> None:
        """Writes every change back to the slow store. The rows stay cached."""
        with self.pair.write_lock:
            self.moves.flush()

    # ---- all rows at once

    def clear(self) -> None:
        """Removes all rows."""
        write_back = self.moves.write_back
        # Nothing leaves the queue meanwhile. A row that arrived after the slow store was cleared
        # would stay there.
        with self.pair.write_lock, self.pair.move_lock.alone(), write_back.still():
            try:
                self.slow.clear()  # first: it refuses while a snapshot is open
                write_back.clear()
                self.resident.clear()
                self.fast.clear()
                self.moves.log.replaced()
            except BaseException:
                if not self.slow.size():
                    write_back.clear()
                    self.moves.remove_orphans()
                    self.moves.log.replaced()
                raise

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> TierTouched:
        """Returns the keys changed since `consumer` last took them; as `HostTable.touched`."""
        return self.feeds.open(consumer, capacity, all_changes, overflow)

    def consumer(self, name: str) -> TierTouched | None:
        """Returns the open consumer of changed keys of this name; None if there is none."""
        return self.feeds.get(name)

    def snapshot(
        self, *, at_start: Callable[[], object] | None = None, paused: bool = False
    ) -> TierSnapshot:
        """Returns a snapshot of all rows. Writers and moves continue while it is open.

        As `HostTable.snapshot`.
        """
        return open_snapshot(self.pair, self._flushed, at_start, paused)

    def _flushed(self) -> Sequence[HostTable]:
        self.moves.flush()
        return (self.slow,)

    @property
    def slot_key(self) -> int:
        """The secret that determines the slots of ids in the slow tier."""
        return self.slow.slot_key

    def use_slot_key(self, slot_key: int) -> None:
        """Sets the slot key of the slow tier. Raises if the table has rows.

        The fast tier keeps its key, since it may share its memory with the tables of a group. If a
        run on a full cache must be repeatable, set the key in the config.
        """
        self.slow.use_slot_key(slot_key)

    def beside(self, rows: int, *, slot_key: int | None = None) -> HostTable:
        """Returns an empty table of one tier, to be filled and passed to `exchange_rows`."""
        return self.slow.beside(rows, slot_key=slot_key)

    def exchange_rows(self, other: HostTable) -> None:
        """Swaps all rows with a table of the same config. All new rows are in the slow store.

        Filters and counts stay. Consumers of all changes see the whole table as changed.
        """
        with self.pair.write_lock, self.pair.move_lock.alone():
            self.moves.flush()
            self.moves.drop(self.resident.at())
            self.slow.exchange_rows(other)
            self.moves.log.replaced()


class Prefetched:
    """One prefetched batch, from `CachingTable.prefetch`. As a context it releases the batch.

    Its distinct keys count as outstanding from the call on. Its rows are pinned once they are in
    the cache, until `release`.
    """

    def __init__(self, ids: Ids, unpin: Callable[[Prefetched], None]) -> None:
        self.ids = ids
        self.slots: Ids = ids[:0]  # of the pinned rows, with the numbers of their stays
        self.stays: Ids = ids[:0]
        self.is_pinned = False
        self._unpin = unpin
        self._done = Event()
        self._error: BaseException | None = None

    def __enter__(self) -> Prefetched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def is_done(self) -> bool:
        """Returns whether its rows are in the cache, or could not be fetched."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until its rows are in the cache. Raises if they could not be fetched.

        Returns False if they are not there after `timeout_s`.
        """
        done = self._done.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return done

    def release(self) -> None:
        """Allows its rows to be evicted. A second call does nothing."""
        self._done.wait()
        self._unpin(self)

    def finish(self, error: BaseException | None) -> None:
        """Records that its rows are in the cache, or the error if they could not be fetched."""
        self._error = error
        self._done.set()


class Prefetcher:
    """Fetches batches in their order. Owns a lock for its queue. Its thread ends when idle."""

    def __init__(self, fetch: Callable[[Prefetched], None]) -> None:
        self._fetch = fetch
        self._waiting: deque[Prefetched] = deque()
        self._outstanding: list[Prefetched] = []
        self._lock = Condition()
        self.thread: Thread | None = None
        self._stopper = ThreadStopper(self, self._lock)

    def add(self, batch: Prefetched, most_ids: int) -> int | None:
        """Queues a batch, unless more distinct keys than `most_ids` would be outstanding.

        Returns the number of distinct keys if it is too large; else None.
        """
        with self._lock:
            every = [batch.ids, *(one.ids for one in self._outstanding)]
            many = len(distinct_ids(np.concatenate(every)))
            if many > most_ids:
                return many
            if self.thread is None or not self.thread.is_alive():  # not started, or before a fork
                self.thread = Thread(target=self._work, name="hedgerow prefetch", daemon=True)
                # The thread waits for the lock. If it cannot start, no batch was queued.
                self._stopper.start(self.thread)
            self._outstanding.append(batch)
            self._waiting.append(batch)
            self._lock.notify_all()
        return None

    def remove(self, batch: Prefetched) -> bool:
        """Removes a batch from the outstanding ones. Returns whether it was one."""
        with self._lock:
            was = batch in self._outstanding
            if was:
                self._outstanding.remove(batch)
            return was

    def is_outstanding(self) -> bool:
        """Returns whether any batch has not been released."""
        return bool(self._outstanding)

    def under_way(self) -> list[Prefetched]:
        """Returns the batches whose rows are not in the cache yet."""
        if not self._outstanding:  # the most frequent case; needs no lock
            return []
        with self._lock:
            return [batch for batch in self._outstanding if not batch.is_done()]

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._stopper.must_stop, _IDLE_S)
                if not self._waiting or self._stopper.must_stop:
                    self.thread = None
                    return
                batch = self._waiting.popleft()
            try:
                self._fetch(batch)
            except BaseException as error:  # raised by `wait`
                batch.finish(error)
            else:
                batch.finish(None)
