"""HYBRID: each row is in one of two stores, the most used rows in the fast one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError
from ..core.ids import distinct_ids
from ..core.shapes import Bool, Float32, Float64, Int8, Int64
from ..tables import arguments
from ..tables.changes import DEFAULT_CAPACITY, Overflow
from ..tables.eviction import Evicted, EvictionOrder, Lfu, Lru, Ttl
from ..tables.host import HostTable
from ..tables.local_table import MemoryUse
from ..tables.optimizers import Rate
from ..tables.store import PLAIN, Applied, Entries, Lookup, Missing, TableKeys, UpdatePolicy, summed
from ..tables.transfer import in_host
from .residency_map import GroupUseCounts, Ids, ResidencyMap, UseCounts
from .tier_pair import (
    ChangeFeeds,
    TierPair,
    TierRows,
    TierSnapshot,
    TierTouched,
    not_copied,
    open_snapshot,
)

if TYPE_CHECKING:  # they need Triton
    from ..tables.device import DeviceTable
    from .device_residency import DeviceResidencyMap
    from .misses import Misses

_MOVED_FRAC = 16  # by default an update promotes up to 1/16 of the fast rows
_RENEW_STEPS = 32  # after this number of updates the coldest rows are searched for again
_SPARE = 2  # a search finds twice as many rows as an update may promote
_GAIN = 2  # current uses by which a row must be hotter: moving two rows costs more than a few reads
_HALF_LIFE_STEPS = 64
_MOVE_COUNTS = ("promotions", "demotions", "failed_moves")

# For a group of tables, which promote together
MOVE_STEPS = 16  # steps between promotions, which take longer than a step
_SOON_STEPS = 2  # steps between promotions while many keys miss
_MANY = 5  # many: more than one key in five


class HybridTable:
    """A table whose hottest rows are in a `fast` store and all others in a `slow` store.

    Rows are inserted in the slow store. After each update, the most used of its rows in the slow
    store are promoted to the fast store, at most `promotions` (by default a sixteenth of
    `fast_rows`). Tables that step together on a device do so every 16 steps, or every 2 while more
    than one key in five misses. A row is promoted into a free slot, or in place of a resident row
    that was used less, by more than two uses of now; that row is demoted. Use counts fade: a use 64
    updates ago counts half. No result depends on which rows are resident.

    Its parts: `pair` (the two stores and their locks), `rows` (reads and writes of rows), `feeds`
    (consumers of changed keys), `use_counts`.

    >>> from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
    >>> config = TableConfig("user", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> table = HybridTable(HostTable(config), HostTable(config), fast_rows=1)
    >>> for ids in ([1, 2], [2], [2], [2]):
    ...     _ = table.apply_gradients(torch.tensor(ids), torch.ones(len(ids), 1))
    >>> table.lookup(torch.tensor([1, 2, 3])).rows.tolist(), table.fast.size(), table.size()
    ([-1.0, -4.0, 0.0], 1, 2)
    >>> [int(table.stats()[name]) for name in ("fast_hits", "slow_hits", "absent", "promotions")]
    [1, 1, 1, 2]
    """

    def __init__(
        self,
        fast: HostTable | DeviceTable,
        slow: HostTable,
        *,
        fast_rows: int,
        promotions: int | None = None,
    ) -> None:
        self.pair = TierPair(fast, slow, fast_rows, _residency_map)
        self.fast, self.slow = fast, slow
        self.config, self.layout = self.pair.config, self.pair.layout
        self.counters, self.resident = self.pair.counters, self.pair.resident
        self.rows = TierRows(self.pair, _SlowRows(slow))
        self.feeds = ChangeFeeds(self.pair)
        if promotions is None:
            promotions = max(1, fast_rows // _MOVED_FRAC)
        self.promotions = checks.count("promotions", promotions)
        self.use_counts = UseCounts(fast_rows, half_life_steps=_HALF_LIFE_STEPS, device=fast.device)
        self._coldest: Ids = np.empty(0, np.int64)  # slots whose rows are demoted next
        self._looked = 0  # updates since these slots were found
        self._scans = 0  # scans in progress, during which no row moves
        self._scanning = Lock()  # guards `_scans`

    def __repr__(self) -> str:
        return self.pair.description("HybridTable")

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

    def table(self, k: int = 0) -> HybridTable:
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
        """Returns the rows of `keys`, in `out` if given. Inserts nothing, and moves no row."""
        return self.rows.lookup(self.pair.keys(keys), missing, step, out)

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
        return self.rows.contains(keys)

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Returns whole rows with their optimizer states and times."""
        return self.rows.entries(keys)

    def uses(self, keys: TableKeys | Int64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """Returns how often each key was used, under an `Lfu` rule; as `HostTable.uses`."""
        return self.pair.uses(self.rows.entries(keys))

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows in slices, each row once, while others write. Meanwhile no row moves."""
        with self._no_moves():
            for store in (self.slow, self.fast):
                for entries in store.scan(rows):
                    yield entries.to(self.device)

    @contextmanager
    def _no_moves(self) -> Iterator[None]:
        with self.pair.write_lock, self._scanning:  # after a move in progress
            self._scans += 1
        try:
            yield
        finally:
            with self._scanning:
                self._scans -= 1

    def size(self) -> int:
        """Returns the number of rows."""
        with self.pair.move_lock.shared:
            return self.fast.size() + self.slow.size()

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes."""
        return self.pair.max_ts()

    def memory(self) -> MemoryUse:
        """Returns bytes of both tiers by purpose. Residency map and use counts count as index."""
        return self.pair.memory(self._known_bytes())

    def device_bytes(self) -> int:
        """Returns bytes on the device in addition to those of the fast table."""
        return 0 if isinstance(self.fast, HostTable) else self._known_bytes()

    def _known_bytes(self) -> int:
        return self.resident.nbytes() + self.use_counts.nbytes()

    def stats(self) -> dict[str, float]:
        """Returns the statistics of one table, summed over both tiers, and of the fast tier."""
        common = self.pair.stats(self.size(), self._known_bytes())
        return {**common, **self.pair.counts(_MOVE_COUNTS)}

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

        As `HostTable.apply_gradients`. An update counts as a use of its rows, and promotes rows.
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
        with self.pair.write_lock:
            done = self.rows.write("apply_gradients", ids, grads, ts, counts, **settings)
            self.count_uses(distinct)
        return done

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

    def check_room(self, ids: Int64[Tensor, "n"], step: int | None) -> None:
        """Raises if an update lacks its step. The number of ids is not limited."""
        del ids
        self.rows.check_step(step)

    def count_uses(self, distinct: Ids) -> None:
        """Counts an update of these ids, and promotes some. The caller holds the write lock."""
        self.use_counts.step(distinct)
        misses = distinct[self.resident.find(distinct) < 0]
        self.promote(torch.from_numpy(misses).to(self.device), 1)

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
        with self.pair.write_lock, self.pair.move_lock.alone(), self._mended(ids.numpy()):
            at, here, _ = self.pair.split(ids)
            erased = self.slow.erase(ids)
            if len(here):
                erased[here] = self.fast.erase(ids[here].to(self.device)).cpu()
                self.resident.remove(np.unique(at[at >= 0]))
        return erased.to(self.device)

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows of both tiers that the eviction rule selects; as `HostTable.evict`."""
        rule = self.config.evict
        checks.flag("capture", capture)
        with self.pair.write_lock, self.pair.move_lock.alone(), self._mended():
            if isinstance(rule, Ttl):
                found = self._evict_older(self.pair.reference_s(now_s))
            elif isinstance(rule, Lru | Lfu):
                budget = rule.rows if rows is None else checks.count("rows", rows, least=1)
                found = self._evict_to(budget)
            else:
                raise ConfigError(
                    f"table {self.config.name!r} has no eviction rule; make its TableConfig with "
                    f"evict=Ttl(...), Lru(...) or Lfu(...)."
                )
            ids = self._coldest[:0] if found.ids is None else found.ids.numpy()
            at = self.resident.find(ids)
            self.resident.remove(at[at >= 0])
        return found if capture else Evicted(found.rows)

    def _evict_older(self, now_s: int | None) -> Evicted:
        parts = [store.evict(now_s=now_s, capture=True) for store in (self.slow, self.fast)]
        ids, ts = (
            torch.cat([x.cpu() for x in column if x is not None])
            for column in ([p.ids for p in parts], [p.ts for p in parts])
        )
        return Evicted(len(ids), ids, ts)

    def _evict_to(self, budget: int) -> Evicted:
        """Evicts rows by their ranks over both tiers, and rows of equal rank by id."""
        if self.fast.size() + self.slow.size() <= budget:
            nothing = torch.empty(0, dtype=torch.int64)
            return Evicted(0, nothing, nothing)
        ids, ts, ranks, hot = (np.concatenate(c) for c in zip(*self._ranked(), strict=True))
        leaving = np.lexsort((ids, ranks))[: max(0, len(ids) - budget)]
        ids, ts, left = ids[leaving], ts[leaving], int(hot[leaving].sum())
        for store, going in ((self.slow, len(ids) - left), (self.fast, left)):
            if going:
                store.evict(rows=store.size() - going)
        return Evicted(len(ids), torch.from_numpy(ids), torch.from_numpy(ts))

    def _ranked(self) -> Iterator[tuple[Ids, Ids, Ids, np.ndarray]]:
        """Yields ids, times and ranks of all rows, and which of them are resident."""
        order = self.slow.order
        assert order is not None
        nothing = np.empty(0, np.int64)
        yield nothing, nothing, nothing, np.empty(0, np.bool_)
        for store in (self.slow, self.fast):
            for given in store.scan():
                part = given.to("cpu")
                ranks = order.ranks(order.stamps(part.ts, part.order))
                hot = np.full(len(part), store is self.fast)
                yield part.ids.numpy(), part.ts.numpy(), ranks.numpy(), hot

    # ---- moves

    def promote(self, misses: Int64[Tensor, "n"], steps: int) -> None:
        """Promotes the most used of some ids in the slow tier, `steps` updates after the last call.

        The ids differ and were used by the last update. The caller holds the write lock.
        """
        self._looked += steps
        if self._scans or not self.promotions or not len(misses):
            return
        uses, free = self.use_counts.of(misses), self.resident.free
        if not free:  # a row with few uses replaces no other
            hotter = uses > _GAIN * self.use_counts.weight
            misses, uses = misses[hotter], uses[hotter]
        uses, order = uses.sort(stable=True, descending=True)
        coming = misses[order[: self.promotions]].cpu()
        there = self.slow.contains(coming)  # other ids were not admitted
        coming, uses = coming[there].numpy(), uses[: len(there)][there.to(uses.device)]
        if len(coming):
            leaving = self._colder(uses[free:])
            try:
                self._swap(coming[: free + len(leaving)], leaving)
            except MemoryError:  # no memory for demoted rows: none moves, and the update is done
                self.counters.add("failed_moves", 1)

    def _colder(self, uses: Float32[Tensor, "n"]) -> Ids:
        """Returns slots whose rows are to be replaced by rows with these uses, at most as many.

        The uses are in falling order.
        """
        if not len(uses):
            return self._coldest[:0]
        if self._looked >= _RENEW_STEPS or len(self._coldest) < len(uses):
            spare = _SPARE * self.promotions
            self._coldest, self._looked = self.resident.least_used(self.use_counts, spare), 0
        at = self._coldest[self.resident.are_taken(self._coldest)]
        theirs, order = self.use_counts.of(self.resident.ids_at(at)).sort(stable=True)
        both = min(len(uses), len(theirs))
        gains = uses[:both] > theirs[:both] + _GAIN * self.use_counts.weight
        going = order[: int(gains.cumprod(0).sum())].cpu().numpy()
        stays = np.ones(len(at), np.bool_)
        stays[going] = False
        self._coldest = at[stays]
        return at[going]

    def _swap(self, coming: Ids, leaving: Ids) -> None:
        """Promotes the rows of `coming`, and demotes the rows at the slots `leaving`."""
        if not len(coming):
            return
        going = self.resident.ids_at(leaving)
        with self.pair.move_lock.alone(), self._mended(np.concatenate([coming, going])):
            if len(leaving):
                gone = torch.from_numpy(going)
                self.slow.move_in(in_host(self.fast.read_out(gone)))
                self.resident.remove(leaving)
                self.fast.move_out(gone)
            rows = self.slow.read_out(torch.from_numpy(coming))
            placed = self.fast.move_in(rows).cpu()
            here = rows.ids[placed]
            self.resident.add(here.numpy())
            self.slow.move_out(here)
        self.counters.add("promotions", len(here))
        if len(leaving):
            self.counters.add("demotions", len(leaving))

    @contextmanager
    def _mended(self, ids: Ids | None = None) -> Iterator[None]:
        """Guards moves of these ids, or of all: after an error, each row is in one store again.

        Memory can run out, or a user can interrupt the program and save. A row is added to its new
        store before the map changes, and removed from the old store after that. The map is right at
        every moment.
        """
        try:
            yield
        except BaseException:
            ids = self.resident.ids_at(self.resident.at()) if ids is None else distinct_ids(ids)
            at = self.resident.find(ids)
            held = torch.from_numpy(ids[at >= 0])
            there = self.fast.contains(held.to(self.device)).cpu()
            self.slow.move_out(held[there])
            self.fast.move_out(torch.from_numpy(ids[at < 0]))
            self.resident.remove(at[at >= 0][~there.numpy()])  # they were erased
            raise

    # ---- all rows at once

    def clear(self) -> None:
        """Removes all rows."""
        with self.pair.write_lock, self.pair.move_lock.alone(), self._mended():
            self.slow.clear()
            self.fast.clear()
            self.resident.clear()

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
        return open_snapshot(self.pair, lambda: (self.slow, self.fast), at_start, paused)

    @property
    def slot_key(self) -> int:
        """The secret that determines the slots of ids in the slow tier."""
        return self.slow.slot_key

    def use_slot_key(self, slot_key: int) -> None:
        """Sets the slot key of the slow tier. Raises if the table has rows.

        The fast tier keeps its key, since it may share its memory with the tables of a group.
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
            at = self.resident.at()
            ids = torch.from_numpy(self.resident.ids_at(at))
            with self._mended(ids.numpy()):
                self.slow.move_in(self.fast.read_out(ids))
                self.resident.remove(at)
                self.fast.move_out(ids)
            self.slow.exchange_rows(other)


class _SlowRows:
    """The `SlowTier` of a hybrid table: a row that is not resident is in the slow store."""

    def __init__(self, slow: HostTable) -> None:
        self._slow = slow

    def read(
        self,
        ids: Int64[Tensor, "n"],
        missing: Missing,
        step: int | None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Float32[Tensor, "n dim"]:
        return self._slow.lookup(ids, missing=missing, step=step, out=out).rows_of()

    def entries(self, ids: Int64[Tensor, "n"]) -> Entries:
        return self._slow.entries(ids)

    def prepare_write(self, ids: Int64[Tensor, "n"]) -> None:
        """Does nothing: no row is in flight."""

    def mark_dirty(self, slots: Ids) -> None:
        """Does nothing: a resident row has no other copy."""


def _residency_map(fast: HostTable | DeviceTable, rows: int) -> ResidencyMap | DeviceResidencyMap:
    if isinstance(fast, HostTable):
        return ResidencyMap(rows)
    from .device_residency import DeviceResidencyMap

    return DeviceResidencyMap(fast, rows)


class GroupPromotions:
    """Counts the uses of hybrid tables that step together, and promotes rows every few steps."""

    def __init__(self, tables: Sequence[HybridTable]) -> None:
        self._tables = tables
        self._uses = GroupUseCounts([table.use_counts for table in tables])
        self._steps = 0  # since rows moved

    def after(self, keys: TableKeys, misses: Misses | None) -> None:
        """Counts a step on these keys, and promotes some of the `misses` if it is time."""
        self._uses.step(keys)
        self._steps += 1
        if misses is None:
            return
        many = _MANY * len(misses.ids) > len(keys.ids)
        if self._steps < (_SOON_STEPS if many else MOVE_STEPS):
            return
        for k, share in misses.shares():
            self._tables[k].promote(torch.unique(misses.on_device[share]), self._steps)
        self._steps = 0
