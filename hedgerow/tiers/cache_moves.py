"""How rows come to a cache and leave it, and how rows that are not cached are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import CacheTooSmallError
from ..core.shapes import Float32, Int64
from ..tables.copies import in_host
from ..tables.host import HostTable
from ..tables.moving import MovingRows
from ..tables.store import Entries, Missing
from .change_feed import TierWatch
from .residency_map import Ids, ResidencyMap
from .tier_pair import put_at
from .write_back import LogReader, WriteBack, WriteLog, no_rows

if TYPE_CHECKING:
    from ..tables.device import DeviceTable
    from .device_residency import DeviceCacheMap

_LEAVE_AT_ONCE = 32  # of a cache on a device, this part


class CacheMoves(TierWatch):
    """The part of `CachingTable` that moves rows. The slow store has a row for every id.

    A row that is neither cached nor being written back is as the slow store has it.
    """

    places: ResidencyMap | DeviceCacheMap

    def __init__(
        self,
        fast: HostTable | DeviceTable,
        slow: HostTable,
        *,
        cache_rows: int,
        allow_small: bool,
        queue_rows: int | None,
    ) -> None:
        super().__init__(fast, slow, cache_rows)
        self.allow_small = checks.flag("allow_small", allow_small)
        queue = cache_rows if queue_rows is None else queue_rows
        self._queue_rows = checks.count("queue_rows", queue, least=1)
        self._back = WriteBack(slow, self._queue_rows, self.counters)
        self._time = LruClock()
        self._notes = WriteLog()  # of what is written behind the cache, for who reads there

    @property
    def _now(self) -> int:
        """The time of the newest use."""
        return self._time.now

    def _make_places(
        self, fast: HostTable | DeviceTable, rows: int
    ) -> ResidencyMap | DeviceCacheMap:
        if isinstance(fast, HostTable):
            return ResidencyMap(rows)
        from .device_residency import DeviceCacheMap

        return DeviceCacheMap(fast, rows)

    # ---- reads behind the cache

    def _read_slow(
        self,
        ids: Int64[Tensor, "n"],
        missing: Missing,
        step: int | None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Float32[Tensor, "n dim"]:
        # Whoever reads keeps rows from leaving the cache: what is not on its way now will not be.
        with self._back.still() as leaving:
            here = _present(leaving, ids)
            rows = leaving.lookup(ids[here], step=step).rows_of() if len(here) else None
        found = self.slow.lookup(ids, missing=missing, step=step, out=out).rows_of()
        if rows is not None:
            found[here] = rows
        return found

    def _slow_entries(self, ids: Int64[Tensor, "n"]) -> Entries:
        with self._back.still() as leaving:
            here = _present(leaving, ids)
            newer = leaving.entries(ids[here])
        return put_at(self.slow.entries(ids), here, newer)

    # ---- fetching

    def _fetch(self, distinct: Ids, known: MovingRows | None = None) -> None:
        """Brings the rows of these ids to the cache; the caller holds `_writing`."""
        self._time.now += 1
        missing, hits = self._missing(distinct)
        self.places.use(hits, self._now)
        if len(missing):
            missing = missing[: self._room_for(missing, hits)]
            self._bring(missing, self._going(len(missing), hits), known)

    def _missing(self, distinct: Ids) -> tuple[Ids, Ids]:
        """Those of the ids whose rows are not cached, and the places of the others."""
        at = self.places.find(distinct)
        missing = distinct[at < 0]
        if len(missing):
            missing = missing[self.slow.contains(torch.from_numpy(missing)).numpy()]
        return missing, at[at >= 0]

    def make_way(self, rows: int) -> int:
        """Room for so many rows beside what is used now, in a cache on a device; how much there is.

        Rows leave many at once: to find the longest unused takes as long for one as for many.
        """
        assert not isinstance(self.places, ResidencyMap)
        if self.places.have_room(rows):
            return rows
        needed = max(rows - self.places.free, self.places.rows // _LEAVE_AT_ONCE)
        going = self.places.leaving(needed, self._now)
        if len(going):
            with self._moves.alone():
                self._drop(going)
            self.counters.add("cache_evictions", len(going))
        return min(rows, self.places.free)

    def settle(self, ids: Int64[Tensor, "n"]) -> None:
        """Rows on their way arrive. One that sets out after that is noted, for who has begun to."""
        self._back.settle(ids)

    def _room_for(self, missing: Ids, hits: Ids) -> int:
        """How many of the rows can come while `hits` and pinned rows stay."""
        room = self.places.not_held(hits)
        if len(missing) > room and not self.allow_small:
            raise CacheTooSmallError(
                f"table {self.config.name!r}: {len(missing)} rows must come to the cache, and "
                f"{room} of its {self.places.rows} places are not held by this step or by "
                f"prefetched batches. Release batches, prefetch fewer, or make the cache larger."
            )
        return min(room, len(missing))

    def _bring(self, ids: Ids, going: Ids, known: MovingRows | None) -> None:
        """Rows of ids that are not cached come; those at places `going` leave first.

        `known` are some that are as the slow store has them.
        """
        asked = torch.from_numpy(ids)
        with self._back.still() as leaving:
            late = leaving.contains(asked)  # what the slow store has of these is old
        parts = [self._read_out(asked[~late], known)]
        with self._moves.alone():
            if len(going):
                self._drop(going)
                self.counters.add("cache_evictions", len(going))
            with self._back.still() as leaving:
                dirty = leaving.read_out(asked[late])
                parts.append(self.slow.read_out(asked[late][~dirty.found]))  # they have arrived
                dirty = dirty.where(dirty.found)
                self._put(MovingRows.joined(parts), is_dirty=False)
                self._put(dirty, is_dirty=True)
                leaving.move_out(dirty.ids)
        self.counters.add("fetches", len(ids))

    def _read_out(self, ids: Int64[Tensor, "n"], known: MovingRows | None) -> MovingRows:
        if known is None or not len(known):
            return self.slow.read_out(ids)
        have = torch.isin(ids, known.ids)
        use = torch.isin(known.ids, ids)
        return MovingRows.joined([known.where(use), self.slow.read_out(ids[~have])])

    def _put(self, rows: MovingRows, *, is_dirty: bool) -> None:
        if not len(rows):
            return
        try:
            placed = self.fast.move_in(rows).cpu()
            at = self.places.take(rows.ids[placed].numpy())
        except BaseException:
            self.places.may_have_come(len(rows))
            self.places.stayed(self.places.find(rows.ids.numpy()), self._now)
            raise
        self.places.use(at, self._now)
        self.places.set_dirty(at, is_dirty)
        if is_dirty and not bool(placed.all()):
            self.slow.move_in(rows.where(~placed))

    def _going(self, rows: int, stay: Ids) -> Ids:
        """The places of the longest unused rows, which make room for so many."""
        needed = rows - self.places.free
        return self.places.coldest(needed, stay, self._now) if needed > 0 else stay[:0]

    def _drop(self, at: Any) -> None:
        """Rows leave the cache; changed ones are on their way to the slow store from now on.

        Places, as `places` has them: on a device they may lie there.
        """
        self._back.land()  # a row that is no longer dirty may be on its way
        ids, dirty = self.places.whose(at)
        if len(dirty):
            rows = in_host(self.fast.read_out(dirty))
            self._log(rows.ids.numpy())
            self._back.put(rows)
        # If this breaks off in between, copies stay that nobody asks for; a place without its
        # row would be read as zeros.
        self.places.give(at)
        try:
            self.fast.move_out(ids)
        except BaseException:
            self.places.stayed(at, self._now)
            raise

    # ---- writes behind the cache

    def _settle(self, ids: Int64[Tensor, "n"]) -> None:
        self._log(ids.numpy())
        self._back.settle(ids)

    def _changing(self, at: Ids) -> None:
        self.places.set_dirty(at, True)

    @contextmanager
    def noted(self) -> Iterator[LogReader]:
        """What is written behind the cache meanwhile, for who reads there without the lock."""
        with self._writing:
            notes = self._notes.begin()
        try:
            yield notes
        finally:
            self._notes.end(notes)

    def _log(self, ids: Ids) -> None:
        self._notes.write(self, ids)

    def _replaced(self) -> None:
        self._notes.replaced()


@dataclass(slots=True, eq=False)
class LruClock:
    """Updates, lookups and prefetches so far; caches that step together have one."""

    now: int = 0


def _present(table: HostTable, ids: Int64[Tensor, "n"]) -> Int64[Tensor, "m"]:
    """Which of the ids a table has."""
    return table.contains(ids).nonzero()[:, 0] if table.size() else no_rows()
