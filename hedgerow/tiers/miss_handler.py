"""Fetches rows that several caches on one device miss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from ..core.shapes import Float32, Int32, Int64
from ..kernels.absent import Listing
from ..kernels.leave import NEVER
from ..kernels.put_rows import Uses, Waiting
from ..kernels.seat import Marks
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys
from .cache_prefetcher import CachePrefetcher
from .caching import CachingTable
from .device_residency import fast_of, places_of
from .eviction import MOST_SPARE, EvictionScheduler
from .misses import HostReadback, ListRoom, Misses, MissRead, Residency, listed
from .residency_map import Ids


class MissHandler:
    """What K alike caches of one device do together; owned by `TierGroup`.

    Rows are read beside whoever steps, without a lock: what is written behind a cache meanwhile
    does not come.
    """

    def __init__(self, caches: Sequence[CachingTable], group: DeviceGroup) -> None:
        self._caches, self._group = caches, group
        self.device = caches[0].device
        self._used, uses = group.spread(torch.int32)
        self._used.fill_(NEVER)
        self._changed, changes = group.spread(torch.bool)
        self._firsts = [int(part.storage_offset()) for part in uses]  # slots of each table
        moved = torch.zeros(2, len(caches), dtype=torch.int64, device=self.device)
        self._time = caches[0]._time
        for k, table in enumerate(caches):
            table._time, table._notes = self._time, caches[0]._notes
            places = places_of(table)
            places.used, places.changed = uses[k], changes[k]
            places.moved = moved[:, k]
        self._uses = Uses(self._used, moved[0])
        self._room = ListRoom(len(caches))
        self.ahead = CachePrefetcher(caches, group, self._used)
        self._departures = EvictionScheduler(caches, group, self._used, self._changed, moved[1])

    def tick(self) -> int:
        """The time of a use: after all before."""
        self._time.now += 1
        return self._time.now

    def now(self) -> int:
        """The time of the newest use."""
        return self._time.now

    def go_on(self) -> None:
        """A step is done: what is beside steps goes on."""
        self.ahead.go_on()
        self._departures.go_on()

    def found_no_lane(self, rest: Misses) -> None:
        """The rows of these keys were brought, and are not there."""
        self._departures.found_no_lane(rest)

    def mark(
        self, keys: TableKeys, slots: Int64[Tensor, "n"], now: int, *, changed: bool = False
    ) -> Int32[Tensor, "n"]:
        """Rows of these slots are used now, or changed; slots as all tables number them."""
        marks = Marks(self._used, self._changed if changed else None, now)
        return self._group.numbered(keys, slots, marks)

    # ---- rows come

    def bring_ahead(self, batch: Int64[Tensor, "all"]) -> None:
        """Rows come that were read for a batch, which is looked up now."""
        behind = self.ahead.take(batch)
        if behind is None:
            return
        with closing(behind), self._caches[0]._writing:
            now = self.tick()
            come = self._make_way(behind, now)
            # Only now: one of them may have come, been changed, and left for the others.
            behind.keep_unchanged()
            if come:
                self._put(behind, now)

    def lookup(self, keys: TableKeys, out: Float32[Tensor, "n dim"], since: int) -> Residency:
        """Rows that are on the device into `out`; where keys are, as `list_absent`.

        They are read once the list is on its way: the host gets it, and goes on, meanwhile. Later
        batches are asked for now: the device does that beside what follows, and here nobody waits
        for who asks.
        """
        slots, listing = self._group.find_and_list(keys, self._room.of(keys))
        found = self._found(slots, listing, since)
        self._group.read(keys, slots, out)
        self.ahead.ask()
        return found

    def list_absent(self, keys: TableKeys, slots: Int64[Tensor, "n"], since: int) -> Residency:
        """Where keys are, with those listed that are not on the device; waits for nothing."""
        listing = self._group.absent_slots(keys, slots, self._room.of(keys))
        return self._found(slots, listing, since)

    def _found(self, slots: Int64[Tensor, "n"], listing: Listing, since: int) -> Residency:
        told = HostReadback(
            listing.words, counts=2 * listing.tables
        )  # nobody has been left yet: zeros
        return Residency(slots, self._group.epochs(), told, since, listing=listing)

    def bring(
        self,
        keys: TableKeys,
        found: Residency,
        now_found: Callable[[Residency], Residency],
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Residency:
        """Rows that caches lack come, and go to `out` if given; what this call uses stays.

        `now_found` tells where keys are if rows have moved since they were found.
        """
        listing, asked = self._asked(keys, found)
        for table, ids in zip(self._caches, asked, strict=True):
            if table._ahead.is_outstanding():
                table._await(ids)
        with closing(MissRead(self._caches, asked, found.since)) as behind:
            behind.read()
            with self._caches[0]._writing:
                known = now_found(found)
                now = self.tick()
                behind.keep_unchanged()
                come = self._make_way(behind, now, lambda: self.mark(keys, known.slots, now))
                waits = known is found
                if come:
                    self._put(behind, now, Waiting(listing, found.slots, out) if waits else None)
                    told = HostReadback(listing.left, here=behind.room_to_tell)
                    if waits:
                        epochs, brought = self._group.epochs(), behind.have_rows
                        return Residency(found.slots, epochs, told, asked=True, brought=brought)
        # What came by another hand is not in `out`: none is sure.
        return replace(found, asked=True, epoch=found.epoch if waits else ())

    def _asked(self, keys: TableKeys, found: Residency) -> tuple[Listing, list[Ids]]:
        """The keys of each table that are not on the device; waits for it."""
        listing, told, tables = found.listing, found.told, len(self._caches)
        if listing is None or max(told.counts) > listing.room:
            listing = self._group.absent_slots(keys, found.slots)
            told = HostReadback(listing.words, counts=2 * tables)
        counts, ids = told.counts[:tables], told.others()
        self._room.lacked(counts)
        if listing.cuts is None:
            return listing, listed(ids, counts, listing.room)
        return listing, [ids[a : a + n] for a, n in zip(keys.splits, counts, strict=False)]

    def _make_way(
        self, behind: MissRead, now: int, tell_used: Callable[[], object] = lambda: None
    ) -> bool:
        """Room for the rows that were found, or for some, and no others come; whether any do."""

        def tell() -> None:
            self.ahead.await_uses()
            tell_used()

        for k, table in enumerate(self._caches):
            # To tell equal ids apart takes time, and is worth it where many would leave for them.
            if behind.counts[k] > places_of(table).rows // MOST_SPARE:
                behind.count_distinct(k)
        # Nobody leaves for ids without a row.
        room = self._departures.make_way(behind.counts, now, self.ahead.asked_since(), tell)
        for k, rows in enumerate(room):
            if rows < behind.counts[k]:
                behind.keep(k, rows)
        return any(behind.counts)

    def _put(self, behind: MissRead, now: int, waiting: Waiting | None = None) -> None:
        """Rows come; the batch that waits for them is told."""
        with self._caches[0]._moves.alone(), self._whole_rows(behind):
            self._group.begin([b - a for a, b in pairwise(behind.splits)], moves=True)
            at = self._group.put(behind.coming(), self._uses, now, waiting)
            for k, table in enumerate(self._caches):
                if not behind.counts[k]:
                    continue
                places, mine = places_of(table), None
                if places.numbers_stays:
                    taken = at[behind.splits[k] : behind.splits[k + 1]]
                    mine = torch.where(taken >= 0, taken - self._firsts[k], -1)
                places.came(behind.counts[k], mine)

    @contextmanager
    def _whole_rows(self, behind: MissRead) -> Iterator[None]:
        """If this breaks off, ids that have a place and not their row yet leave it; all count."""
        try:
            yield
        except BaseException:
            for k, share in behind.shares():
                fast_of(self._caches[k]).move_out_unset(torch.from_numpy(behind.ids[share]))
                places_of(self._caches[k]).may_have_come(share.stop - share.start)
            raise
