"""A group of tables in two tiers with fast rows on one device, updated by one launch per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import sub

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.shapes import Float32, Int64
from ..kernels.incoming_rows import ArrivalCounts, MissList, WaitingBatch
from ..kernels.leave import NEVER
from ..kernels.output_gradients import OutputGradients
from ..kernels.pool_features import spread_at
from ..kernels.runs import Marks
from ..tables.eviction import one_call
from ..tables.host import lookup_several
from ..tables.multi.device_group import DeviceGroup
from ..tables.optimizers import Rate
from ..tables.store import Applied, Missing, TableKeys
from ..tables.transfer import host_room, to_device, to_host
from .caching import CachingTable
from .device_residency import device_map_of, device_store_of
from .eviction import MOST_SPARE, EvictionScheduler
from .hybrid import GroupPromotions, HybridTable
from .lookup_outputs import LookupOutput
from .misses import CachePrefetcher, HostReadback, ListRoom, Misses, MissRead, Residency, listed
from .residency_map import Ids
from .tier_pair import share_locks

NowResident = Callable[[TableKeys, Residency], Residency]


@dataclass(frozen=True, slots=True, eq=False)
class GroupUpdate:
    """The share of a `TierGroup` in an update, checked by `TierGroup.check`."""

    keys: TableKeys
    grads: Float32[Tensor, "n dim"] | OutputGradients
    rates: Sequence[float]
    step: int | None
    ts: int
    counts: Int64[Tensor, "n"] | None
    found: Residency | None  # where a lookup of these keys found them


class TierGroup:
    """Steps K tables of one mode, with rows of one kind, together. Owned by `TierTables`.

    One launch looks up or updates the rows of all tables on the device. The host learns which keys
    miss, and handles those. The tables own their rows and all other methods. A step of the group
    does what K calls of the tables would do.
    """

    def __init__(self, tables: Sequence[CachingTable | HybridTable], group: DeviceGroup) -> None:
        self.tables, self.device_group = tables, group
        self.device = tables[0].device
        self.names = tuple(table.config.name for table in tables)
        share_locks([table.pair for table in tables])
        pair = tables[0].pair
        self._write_lock, self._move_lock = pair.write_lock, pair.move_lock
        caches = [table for table in tables if isinstance(table, CachingTable)]
        hybrids = [table for table in tables if isinstance(table, HybridTable)]
        self._caches = caches
        self.miss_handler = MissHandler(caches, group) if caches else None
        self._promotions = GroupPromotions(hybrids) if hybrids else None
        self._least_rows = min(table.resident.rows for table in tables)
        self._admits = any(table.config.admit is not None for table in tables)

    def can_step(self) -> bool:
        """Returns whether one launch can still serve the tables."""
        return self.device_group.whole()

    # ---- reads

    def lookup(
        self,
        keys: TableKeys,
        out: LookupOutput,
        missing: Missing,
        step: int | None,
        batch: Int64[Tensor, "all"],
    ) -> Residency:
        """Passes rows to `out`. With `missing="training"`, misses of caches are fetched first.

        The caller has checked the arguments. `batch` are the ids of which the keys are a part.
        """
        handler = self.miss_handler if missing == "training" else None
        if handler is None:
            with self._move_lock.shared:  # no row moves between the two reads
                found = self._residency(out.find(keys))
                return self._read_misses(keys, found, out, missing, step)
        if keys.splits[-1] > self._least_rows:
            self._check_distinct(keys)
        if handler.prefetcher.batches:
            handler.fetch_prefetched(batch)
        found = None
        while True:
            # No row moves between the reads of the fast and of the slow tier. Otherwise a row that
            # was fetched meanwhile would be read from the slow store with old values.
            with self._move_lock.shared:
                if found is None:
                    found = handler.lookup(keys, out)
                elif found.epoch != self.device_group.epochs():
                    found = replace(handler.lookup(keys, out), tried=True)
                if found.tried or not found.miss_count():
                    return self._read_misses(keys, found, out, missing, step)
            found = handler.fetch(keys, found, self.now_resident, out.rows)

    def prefetch(self, keys: TableKeys, batch: Int64[Tensor, "all"]) -> None:
        """Starts to read the rows that caches lack for a batch that will be looked up later."""
        if self.miss_handler is not None:
            self.miss_handler.prefetcher.add(keys, batch)

    def now_resident(self, keys: TableKeys, found: Residency | None) -> Residency:
        """Returns where keys are: `found`, unless rows have moved since."""
        if found is not None and found.epoch == self.device_group.epochs():
            return found
        # Under the lock: a move in progress has a new epoch already, but still old slots.
        with self._move_lock.shared:
            if self.miss_handler is None:
                return self._residency(self.device_group.find(keys))
            since = self.miss_handler.clock.now  # first: a row fetched later has a later use
            return self.miss_handler.residency(keys, self.device_group.find(keys), since)

    def _residency(self, slots: Int64[Tensor, "n"]) -> Residency:
        """Returns where keys are, without a list of the misses."""
        return Residency(slots, self.device_group.epochs(), HostReadback((slots < 0).sum().view(1)))

    def _read_misses(
        self,
        keys: TableKeys,
        found: Residency,
        out: LookupOutput,
        missing: Missing,
        step: int | None,
    ) -> Residency:
        """Reads the rows that are not on the device, and counts the hits of the call."""
        if found.came or not found.miss_count():  # fetched rows count as hits; see `fetches`
            for table, (start, stop) in zip(self.tables, pairwise(keys.splits), strict=True):
                if start < stop:
                    table.counters.add("fast_hits", stop - start)
            # If rows were fetched after the first read, the output is read again.
            out.finish(keys, found.slots, missed=found.tried)
            return found
        misses = found.misses_of(keys)
        there = self._read_slow(misses, out.rows, missing, step)
        out.finish(keys, found.slots, missed=True)
        sizes = np.diff(misses.splits).tolist()
        for k, (start, stop) in enumerate(pairwise(keys.splits)):
            self.tables[k].pair.count_hits(stop - start - sizes[k], there[k], stop - start)
        return replace(found, misses=misses)

    def known(
        self, keys: TableKeys, slots: Int64[Tensor, "n"], epoch: tuple[object, ...]
    ) -> Residency | None:
        """Returns where keys are, by slots found at `epoch`; None if rows have moved since."""
        handler = self.miss_handler
        since = 0 if handler is None else handler.clock.now  # first: see `now_resident`
        if epoch != self.device_group.epochs():
            return None
        if handler is None:
            return self._residency(slots)
        return replace(handler.residency(keys, slots, since), epoch=epoch)

    def _read_slow(
        self, misses: Misses, out: Float32[Tensor, "n dim"], missing: Missing, step: int | None
    ) -> list[int]:
        """Reads rows of the slow tier. Returns how many of each table exist."""
        rows = host_room((len(misses.ids), out.shape[1]), torch.float32, self.device)
        there = [0] * len(self.tables)
        if self.miss_handler is None:
            slow = [table.slow for table in self.tables]
            found = lookup_several(slow, misses.ids, misses.splits, missing, step, rows)
            there = misses.counts(found)
        else:  # few, and some may be in the write-back queue
            for k, share in misses.shares():
                self._caches[k].moves.read(misses.ids[share], missing, step, rows[share])
                there[k] = int(self.tables[k].slow.contains(misses.ids[share]).sum())
        out.index_copy_(0, misses.at, to_device(rows, self.device))
        return there

    def _check_distinct(self, keys: TableKeys) -> None:
        for table, (start, stop) in zip(self._caches, pairwise(keys.splits), strict=True):
            table.check_distinct(keys.ids[start:stop])

    # ---- updates

    def check(
        self,
        keys: TableKeys,
        grads: Float32[Tensor, "n dim"] | OutputGradients,
        rates: Sequence[Sequence[Rate] | None] | None,
        step: int | None,
        ts: int,
        counts: Int64[Tensor, "n"] | None,
        found: Residency | None,
    ) -> GroupUpdate | None:
        """Raises on an update that `apply_gradients` of a table would refuse.

        Returns None if the rates of the tables differ. The caller has checked keys and gradients.
        """
        if counts is not None:
            checks.tensor("counts", counts, torch.int64, (len(keys.ids),), self.device)
        sizes = list(map(sub, keys.splits[1:], keys.splits))
        same = self.device_group.rates_at(sizes, rates, step)
        if self._admits or keys.splits[-1] > self._least_rows:
            for table, (start, stop) in zip(self.tables, pairwise(keys.splits), strict=True):
                admits = table.config.admit is not None
                if start < stop and (admits or stop - start > table.resident.rows):
                    table.check_room(keys.ids[start:stop], step)
        if same is None:
            return None
        return GroupUpdate(keys, grads, same, step, ts, counts, found)

    def apply(self, update: GroupUpdate) -> Applied:
        """Makes one optimizer step on all tables."""
        keys, found, handler = update.keys, update.found, self.miss_handler
        if found is None or found.epoch != self.device_group.epochs():
            found = self.now_resident(keys, found)
        if handler is not None:
            if not found.tried and found.miss_count():
                found = handler.fetch(keys, found, self.now_resident)
            if handler.prefetcher.batches:
                handler.prefetcher.go_on()
        with self._write_lock:
            if found.epoch != self.device_group.epochs():
                found = self.now_resident(keys, found)
            done = self._apply(update, found)
        if handler is not None:
            if handler.prefetcher.batches:
                handler.prefetcher.go_on()
            handler.evictions.go_on()
        return done

    def _apply(self, update: GroupUpdate, found: Residency) -> Applied:
        """Makes the step. The caller holds the write lock."""
        keys, group, handler = update.keys, self.device_group, self.miss_handler
        sizes = list(map(sub, keys.splits[1:], keys.splits))
        # A table without keys does not take the time of the call: its rows would expire by it.
        times = [0] * len(sizes)
        for k, n in enumerate(sizes):
            if n:
                times[k] = self.tables[k].slow.next_time(update.ts)
        order = self.tables[0].slow.core.stamps.order
        with one_call(order, max(times), sum(sizes)):
            misses, behind = None, []
            # A row that was fetched but found no lane in its buckets must be updated like a
            # resident row. The device updates its rows first, and lists these rows for the host.
            if not found.came and found.miss_count():
                misses, behind = self._apply_misses(update, found, times)
            if handler is None:
                numbered = group.numbered(keys, found.slots)
            else:
                handler.clock.now += 1
                marks = Marks(handler.used, handler.changed, handler.clock.now)
                numbered = group.numbered(keys, found.slots, marks)
            stamps = group.stamps(times, sizes)
            group.begin(sizes, stamps)
            made = group.step_known(
                keys, numbered, update.grads, update.rates, max(stamps), update.step
            )
            for table, time in zip(self.tables, times, strict=True):
                if time:
                    table.slow.moves.saw(time)
            if found.came and found.miss_count():
                misses, behind = self._apply_misses(update, found, times)
                if handler is not None:
                    handler.evictions.overflowed(misses)
            if self._promotions is not None:
                self._promotions.after(keys, misses)
            counted = made.sum(dim=0)
        for one in behind:
            counted = one.counts.to(self.device) + counted
        return Applied(counted)

    def _apply_misses(
        self, update: GroupUpdate, found: Residency, times: Sequence[int]
    ) -> tuple[Misses, list[Applied]]:
        """Makes one optimizer step on rows of the slow tier.

        Rows that were fetched but found no lane are treated as on the device: gradients that are
        not finite are dropped, and counts below 1 count as 1. None of them raises an error.
        """
        misses = found.misses_of(update.keys)
        given = update.grads
        with self.device_group.on_device():
            own = given[misses.at] if isinstance(given, Tensor) else spread_at(given, misses.at)
        (grads,) = to_host(own)
        seen = None if update.counts is None else update.counts[misses.at].cpu()
        if seen is not None and found.came:
            seen = seen.clamp(min=1)
        calls = []
        for k, share in misses.shares():
            counts = None if seen is None else seen[share]
            checked = self.tables[k].slow.update_arguments(
                *(misses.ids[share], grads[share], update.rates, update.step, counts),
                reject=not found.came,
            )
            calls.append((k, checked, counts))
        done = []
        for k, checked, counts in calls:  # all calls were checked before the first row changes
            table = self.tables[k]
            table.rows.behind.prepare_write(checked[0])
            done.append(table.slow.apply_checked(*checked, times[k], counts, False))
        return misses, done


class MissHandler:
    """Finds and fetches misses for a `TierGroup` of caches.

    It reads missing rows without a lock while other threads step. A row that is written behind its
    cache meanwhile is not fetched.
    """

    def __init__(self, caches: Sequence[CachingTable], group: DeviceGroup) -> None:
        self._caches, self.device_group = caches, group
        self.device = caches[0].device
        self.used, uses = group.spread(torch.int32)  # the last use of each slot
        self.used.fill_(NEVER)
        self.changed, changes = group.spread(torch.bool)  # whether its row is dirty
        self._firsts = [int(part.storage_offset()) for part in uses]  # slots of each table
        moved = torch.zeros(2, len(caches), dtype=torch.int64, device=self.device)
        self.clock = caches[0].moves.clock
        for k, table in enumerate(caches):
            table.moves.share(caches[0].moves)
            resident = device_map_of(table)
            resident.used, resident.changed = uses[k], changes[k]
            resident.moved = moved[:, k]
        self._uses = ArrivalCounts(self.used, moved[0])
        self.list_room = ListRoom(len(caches))
        self.prefetcher = CachePrefetcher(caches, group, self.used)
        self.evictions = EvictionScheduler(caches, group, self.used, self.changed, moved[1])

    # ---- which keys miss

    def lookup(self, keys: TableKeys, out: LookupOutput) -> Residency:
        """Passes the rows that are on the device to `out`, and lists the misses.

        The device copies the list to the host while it reads the rows. Prefetch requests for later
        batches are sent last: the device runs them beside later work, and this lookup never waits
        for them.
        """
        since = self.clock.now
        group = self.device_group
        slots, listing = group.find_and_list(keys, self.list_room.of(keys))
        readback = HostReadback(listing.words, counts=2 * listing.tables)
        found = Residency(slots, group.epochs(), readback, since, listing=listing)
        out.read(keys, slots)
        if self.prefetcher.batches:
            self.prefetcher.ask()
        return found

    def residency(self, keys: TableKeys, slots: Int64[Tensor, "n"], since: int) -> Residency:
        """Lists the misses among known slots. Does not wait."""
        listing = self.device_group.absent_slots(keys, slots, self.list_room.of(keys))
        readback = HostReadback(listing.words, counts=2 * listing.tables)
        return Residency(slots, self.device_group.epochs(), readback, since, listing=listing)

    def tick(self) -> int:
        """Returns the time of a new use, which is later than all earlier ones."""
        self.clock.now += 1
        return self.clock.now

    # ---- rows are fetched

    def fetch_prefetched(self, batch: Int64[Tensor, "all"]) -> None:
        """Moves the rows of a prefetched batch, which is looked up now, into the caches."""
        reading = self.prefetcher.take(batch)
        if reading is None:
            return
        with closing(reading), self._caches[0].pair.write_lock:
            now = self.tick()
            come = self._make_room(reading, now)
            # Only now: a row may have been fetched, changed and evicted by another call meanwhile.
            reading.keep_unchanged()
            if come:
                self._put(reading, now)

    def fetch(
        self,
        keys: TableKeys,
        found: Residency,
        now_resident: NowResident,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Residency:
        """Fetches the misses, and writes their rows to `out` if given.

        Rows that the call uses are not evicted. `now_resident` returns where keys are if rows have
        moved.
        """
        listing, asked = self.missing_ids(keys, found)
        for table, ids in zip(self._caches, asked, strict=True):
            if table.prefetcher.is_outstanding():
                table.await_prefetches(ids)
        with closing(MissRead(self._caches, asked, found.since)) as reading:
            reading.read()
            with self._caches[0].pair.write_lock:
                known = now_resident(keys, found)
                now = self.tick()
                reading.keep_unchanged()

                def tell_used() -> None:
                    self.device_group.numbered(keys, known.slots, Marks(self.used, None, now))

                come = self._make_room(reading, now, tell_used)
                in_place = known is found
                if come:
                    waiting = WaitingBatch(listing, found.slots, out) if in_place else None
                    self._put(reading, now, waiting)
                    readback = HostReadback(listing.left, here=reading.room_for_counts)
                    if in_place:
                        epochs, came = self.device_group.epochs(), reading.have_rows
                        return Residency(found.slots, epochs, readback, tried=True, came=came)
        # Another call may have fetched rows, which are not in `out`: read all again.
        return replace(found, tried=True, epoch=found.epoch if in_place else ())

    def missing_ids(self, keys: TableKeys, found: Residency) -> tuple[MissList, list[Ids]]:
        """Returns the keys of each table that are not on the device. Waits for the list."""
        listing, readback, tables = found.listing, found.readback, len(self._caches)
        if listing is None or max(readback.counts) > listing.room:
            listing = self.device_group.absent_slots(keys, found.slots)
            readback = HostReadback(listing.words, counts=2 * tables)
        counts, ids = readback.counts[:tables], readback.others()
        self.list_room.lacked(counts)
        if listing.cuts is None:
            return listing, listed(ids, counts, listing.room)
        return listing, [ids[a : a + n] for a, n in zip(keys.splits, counts, strict=False)]

    def _make_room(
        self, reading: MissRead, now: int, tell_used: Callable[[], object] = lambda: None
    ) -> bool:
        """Evicts rows to make room for the rows that were read, and excludes rows that find none.

        Returns whether any rows will be fetched.
        """

        def tell() -> None:
            self.prefetcher.await_uses()
            tell_used()

        for k, table in enumerate(self._caches):
            # Finding equal ids takes time. It pays off if many rows would have to be evicted.
            if reading.counts[k] > device_map_of(table).rows // MOST_SPARE:
                reading.count_distinct(k)
        # Ids without a row need no room.
        since = self.prefetcher.asked_since()
        room = self.evictions.make_room(reading.counts, now, since, tell)
        for k, rows in enumerate(room):
            if rows < reading.counts[k]:
                reading.keep(k, rows)
        return any(reading.counts)

    def _put(self, reading: MissRead, now: int, waiting: WaitingBatch | None = None) -> None:
        """Moves rows into the caches. Updates the lists of the batch that is `waiting` for them."""
        group = self.device_group
        with self._caches[0].pair.move_lock.alone(), self._whole_rows(reading):
            group.begin([b - a for a, b in pairwise(reading.splits)], moves=True)
            at = group.put(reading.coming(), self._uses, now, waiting)
            for k, table in enumerate(self._caches):
                if not reading.counts[k]:
                    continue
                resident, mine = device_map_of(table), None
                if resident.numbers_stays:
                    taken = at[reading.splits[k] : reading.splits[k + 1]]
                    mine = torch.where(taken >= 0, taken - self._firsts[k], -1)
                resident.added(reading.counts[k], mine)

    @contextmanager
    def _whole_rows(self, reading: MissRead) -> Iterator[None]:
        """Guards a move: if it fails, removes ids that have a slot but no row yet."""
        try:
            yield
        except BaseException:
            for k, share in reading.shares():
                table = self._caches[k]
                device_store_of(table).move_out_unset(torch.from_numpy(reading.ids[share]))
                device_map_of(table).may_have_come(share.stop - share.start)
            raise
