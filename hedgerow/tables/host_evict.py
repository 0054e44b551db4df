"""How rows leave a table in host memory: eviction by its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import ConfigError
from ..core.forklock import ForkLock
from ..core.shapes import Int64
from .config import TableConfig
from .expiry import Lfu, Lru, Ttl
from .host_reads import HostStamps

_SLICE_ROWS = 65536  # looked at in one native call

# cursor, room, address of ids, address of times -> rows gone, cursor, done, room needed
_Step = Callable[[int, int, int, int], tuple[int, int, bool, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Evicted:
    """What an eviction took: how many rows, and which (None if that was not asked for), by id."""

    rows: int
    ids: Int64[Tensor, "rows"] | None = None
    ts: Int64[Tensor, "rows"] | None = None


class HostEvictions(HostStamps):
    """The part of `HostTable` that lets rows go. One eviction runs at a time, under its lock."""

    config: TableConfig
    native_table: native.Table
    _evicting: ForkLock

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows that the table's rule says must go; their memory serves new ids.

        Other calls go on meanwhile. A row is judged by its time at the moment it would leave: one
        that was updated in between stays. `now_s` replaces the rule's reference time. `capture`
        gives the ids and times of the rows that left. `rows` replaces the number of a rule of room:
        a shard or a tier keeps its share of it, which may be none.
        """
        rule = self.config.evict
        checks.flag("capture", capture)
        given = None if now_s is None else checks.count("now_s", now_s)
        with self._evicting:
            if isinstance(rule, Ttl):
                evicted = self._evict_older(rule, given, capture)
            elif isinstance(rule, Lru | Lfu):
                budget = rule.rows if rows is None else checks.count("rows", rows)
                evicted = self._evict_to(rule, budget, capture)
            else:
                raise ConfigError(
                    f"table {self.config.name!r} has no eviction rule; make its TableConfig with "
                    f"evict=Ttl(...), Lru(...) or Lfu(...)."
                )
        self._events.add("evicted", evicted.rows)
        if self._order is None or evicted.ts is None:
            return evicted
        return Evicted(evicted.rows, evicted.ids, self._order.seconds(evicted.ts))

    def _evict_older(self, rule: Ttl, now_s: int | None, capture: bool) -> Evicted:
        if now_s is None:
            newest = rule.reference == "newest"
            now_s = self.native_table.newest_time() if newest else self.clock.now_s()
        reference, ages = now_s, rule.ages_s()

        def take(cursor: int, room: int, ids_at: int, times_at: int) -> tuple[int, int, bool, int]:
            return self.native_table.evict_older(
                reference, ages.data_ptr(), cursor, room, ids_at, times_at
            )

        return _in_slices(take, capture)

    def _evict_to(self, rule: Lru | Lfu, rows: int, capture: bool) -> Evicted:
        assert self._order is not None
        order, top = ("use" if isinstance(rule, Lfu) else "time"), self._order.top
        left, score, key = self.native_table.find_cut(order, rows, top)
        if left == 0:
            return _in_slices(lambda *_: (0, 0, True, 0), capture)

        def take(cursor: int, room: int, ids_at: int, times_at: int) -> tuple[int, int, bool, int]:
            nonlocal left
            step = self.native_table.evict_ranked(
                order, left, score, key, cursor, room, ids_at, times_at, top
            )
            left -= step[0]
            return step

        return _in_slices(take, capture)


def _in_slices(take: _Step, capture: bool) -> Evicted:
    ids, ts = (torch.empty(_SLICE_ROWS, dtype=torch.int64, device="cpu") for _ in range(2))
    rows, cursor, done = 0, 0, False
    parts = [(ids[:0], ts[:0])]
    while not done:
        gone, cursor, done, needed = take(cursor, len(ids), ids.data_ptr(), ts.data_ptr())
        rows += gone
        if needed:
            ids, ts = (torch.empty(needed, dtype=torch.int64, device="cpu") for _ in range(2))
        elif capture and gone:
            parts.append((ids[:gone].clone(), ts[:gone].clone()))
    if not capture:
        return Evicted(rows)
    ids, order = torch.cat([part[0] for part in parts]).sort()
    return Evicted(rows, ids, torch.cat([part[1] for part in parts])[order])
