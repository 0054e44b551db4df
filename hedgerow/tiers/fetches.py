"""Rows that several caches on one device lack, brought from behind them in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from ..core.shapes import Float32, Int32, Int64
from ..kernels.leave import NEVER
from ..kernels.put_rows import Uses
from ..kernels.seat import Marks
from ..tables.moving import MovingRows
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys
from .caching import CachingTable
from .departures import Departures
from .device_cache_places import places_of
from .device_places import fast_of
from .found import Asked, Count, Found, Rest
from .reads_ahead import ReadsAhead
from .reads_behind import Behind


class Fetches:
    """What K alike caches of one device do together; owned by `Together`.

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
        for k, table in enumerate(caches):
            places = places_of(table)
            places.used, places.changed = uses[k], changes[k]
            places.moved = moved[:, k]
        self._uses = Uses(self._used, moved[0])
        self.ahead = ReadsAhead(caches, group, self._used)
        self._departures = Departures(
            *(caches, group, self._used, self._changed, moved[1], self._firsts)
        )

    def tick(self) -> int:
        """The time of a use: after all before."""
        now = 1 + max(table._now for table in self._caches)
        for table in self._caches:
            table._now = now
        return now

    def times(self) -> tuple[int, ...]:
        """The time of each cache."""
        return tuple(table._now for table in self._caches)

    def go_on(self) -> None:
        """A step is done: what is beside steps goes on."""
        self.ahead.go_on()
        self._departures.go_on()

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
            room = self._make_way(behind, now)
            # Only now: one of them may have come, been changed, and left for the others.
            behind.keep_unchanged()
            if self._fit(behind, room):
                self._put(behind, now)

    def bring(
        self,
        keys: TableKeys,
        found: Found,
        now_found: Callable[[Found], Found],
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Found:
        """Rows that caches lack come, and go to `out` if given; what this call uses stays.

        `now_found` tells where keys are if rows have moved since they were found.
        """
        rest = found.rest_of(keys) if found.listed is None else found.listed.rest(keys.splits)
        for k, share in rest.shares():
            if self._caches[k]._ahead.under_way():
                self._caches[k]._await(rest.ids[share].numpy())
        with closing(Behind(self._caches, rest, found.since)) as behind:
            behind.read()
            behind.copy()
            with self._caches[0]._writing:
                known = now_found(found)
                now = self.tick()
                behind.keep_unchanged()
                used = lambda: self.mark(keys, known.slots, now)  # noqa: E731
                come = None
                if self._fit(behind, self._make_way(behind, now, used)):
                    come = self._put(behind, now)
                if known is not found:  # what came by another hand is not in `out`: none is sure
                    found = replace(found, epoch=())
                elif come is not None:
                    if out is not None:
                        out.index_copy_(0, rest.at, come.rows)
                    found = self._find_rest(found, rest, is_read=bool(behind.found.all()))
        return replace(found, asked=True)

    def _find_rest(self, found: Found, rest: Rest, *, is_read: bool) -> Found:
        """With the slots of the rest, which has come; waits for nothing."""
        slots = self._group.find(rest.keys(), once=True)
        found.slots.index_copy_(0, rest.at, slots)
        epochs = tuple(fast_of(table)._epoch for table in self._caches)
        return Found(found.slots, epochs, Count((slots < 0).sum()), is_read=is_read)

    def _make_way(
        self, behind: Behind, now: int, tell_used: Callable[[], object] = lambda: None
    ) -> Sequence[int] | None:
        """Room for the rows that were found; how much each table has, if not enough for all."""

        def tell() -> None:
            self.ahead.await_uses()
            tell_used()

        counts = behind.asked.counts(behind.found)  # nobody leaves for ids without a row
        room = self._departures.make_way(counts, now, self.ahead.asked_since(), tell)
        return None if list(room) == counts else room

    def _fit(self, behind: Behind, room: Sequence[int] | None) -> bool:
        """No more rows come than there is room for; whether there are any."""
        if room is not None:
            for k, share in behind.asked.shares():
                mine = behind.found[share]
                mine[mine.cumsum(0) > room[k]] = False
        return bool(behind.found.any())

    def _put(self, behind: Behind, now: int) -> MovingRows:
        """Rows come; they, on the device."""
        asked = behind.asked
        with self._caches[0]._moves.alone(), self._whole_rows(asked):
            for k, share in asked.shares():
                fast = fast_of(self._caches[k])
                fast._begin_at(0, share.stop - share.start)
                fast._timed, fast._epoch = True, object()
            coming = behind.coming()
            at = self._group.put(TableKeys(coming.ids, asked.splits), coming, self._uses, now)
            for k, share in asked.shares():
                places, mine = places_of(self._caches[k]), None
                if places.numbers_stays:
                    mine = torch.where(at[share] >= 0, at[share] - self._firsts[k], -1)
                places.came(share.stop - share.start, mine)
        return coming

    @contextmanager
    def _whole_rows(self, asked: Asked) -> Iterator[None]:
        """If this breaks off, ids that have a place and not their row yet leave it; all count."""
        try:
            yield
        except BaseException:
            for k, share in asked.shares():
                fast_of(self._caches[k]).move_out_unset(asked.ids[share])
                places_of(self._caches[k]).may_have_come(share.stop - share.start)
            raise
