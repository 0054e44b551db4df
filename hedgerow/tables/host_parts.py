"""The parts of a host table: its evictions, its change feed, and moves of rows between tiers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError, InputError, NameTakenError
from ..core.forklock import ForkLock
from ..core.shapes import Bool, Int64
from ..core.use_weights import MARK_BITS
from .config import TableConfig
from .expiry import Evicted, Lfu, Lru, Ttl
from .layout import RowLayout, entry_room
from .memory_errors import memory_errors
from .moving import MovingRows
from .snapshot import Snapshot
from .stamps import Stamps
from .store import all_found
from .touched import TouchedKeys, TouchedSettings

_SLICE_ROWS = 65536  # looked at in one native call

# cursor, room, address of ids, address of times -> rows gone, cursor, done, room needed
_Step = Callable[[int, int, int, int], tuple[int, int, bool, int]]


class HostEvictions:
    """Removes rows by the rule of a host table. One eviction runs at a time, under a lock."""

    def __init__(
        self, config: TableConfig, native_table: native.Table, stamps: Stamps, events: Counters
    ) -> None:
        self._config = config
        self._native_table = native_table
        self._stamps = stamps
        self._events = events
        self._running = ForkLock()

    def evict(self, *, now_s: int | None, capture: bool, rows: int | None) -> Evicted:
        """Removes the rows that must go; as `HostTable.evict`."""
        rule = self._config.evict
        checks.flag("capture", capture)
        given = None if now_s is None else checks.count("now_s", now_s)
        with self._running:
            if isinstance(rule, Ttl):
                evicted = self._evict_older(rule, given, capture)
            elif isinstance(rule, Lru | Lfu):
                budget = rule.rows if rows is None else checks.count("rows", rows)
                evicted = self._evict_to(rule, budget, capture)
            else:
                raise ConfigError(
                    f"table {self._config.name!r} has no eviction rule; make its TableConfig with "
                    f"evict=Ttl(...), Lru(...) or Lfu(...)."
                )
        self._events.add("evicted", evicted.rows)
        order = self._stamps.order
        if order is None or evicted.ts is None:
            return evicted
        return Evicted(evicted.rows, evicted.ids, order.seconds(evicted.ts))

    def _evict_older(self, rule: Ttl, now_s: int | None, capture: bool) -> Evicted:
        if now_s is None:
            newest = rule.reference == "newest"
            now_s = self._native_table.newest_time() if newest else self._stamps.clock.now_s()
        reference, ages = now_s, rule.ages_s()

        def take(cursor: int, room: int, ids_at: int, times_at: int) -> tuple[int, int, bool, int]:
            return self._native_table.evict_older(
                reference, ages.data_ptr(), cursor, room, ids_at, times_at
            )

        return _in_slices(take, capture)

    def _evict_to(self, rule: Lru | Lfu, rows: int, capture: bool) -> Evicted:
        assert self._stamps.order is not None
        order, top = ("use" if isinstance(rule, Lfu) else "time"), self._stamps.order.top
        left, score, key = self._native_table.find_cut(order, rows, top)
        if left == 0:
            return _in_slices(lambda *_: (0, 0, True, 0), capture)

        def take(cursor: int, room: int, ids_at: int, times_at: int) -> tuple[int, int, bool, int]:
            nonlocal left
            step = self._native_table.evict_ranked(
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


class HostFeed:
    """What others may follow of a host table: touched keys, and snapshots of all rows."""

    def __init__(
        self, name: str, layout: RowLayout, native_table: native.Table, stamps: Stamps
    ) -> None:
        self._name = name
        self._layout = layout
        self._native_table = native_table
        self._stamps = stamps
        self._consumers: dict[str, TouchedKeys] = {}
        self._opening = ForkLock()

    def touched(self, consumer: str, settings: TouchedSettings) -> TouchedKeys:
        """The touched keys of `consumer`, who may be open already with the same settings."""
        if not isinstance(consumer, str) or not consumer:
            raise InputError(f"consumer is {consumer!r}; it must be a non-empty str.")
        with self._opening:
            known = self._consumers.get(consumer)
            if known is None:
                known = TouchedKeys(self._native_table, consumer, settings, self._forget)
                self._consumers[consumer] = known
        if known.settings != settings:
            raise NameTakenError(
                f"consumer {consumer!r} of table {self._name!r} is open with "
                f"{known.settings}, not {settings}; close it first, or choose another name."
            )
        return known

    def consumer(self, name: str) -> TouchedKeys | None:
        """The consumer of touched keys that is open under a name, if one is."""
        with self._opening:
            return self._consumers.get(name)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The names of the consumers of touched keys that are open."""
        with self._opening:
            return tuple(self._consumers)

    def _forget(self, consumer: str) -> None:
        with self._opening:
            self._consumers.pop(consumer, None)

    def snapshot(
        self, aside_bytes: int, at_start: Callable[[], object] | None, paused: bool
    ) -> Snapshot:
        """All rows as they are when this returns; as `HostTable.snapshot`."""
        checks.count("aside_bytes", aside_bytes)
        if at_start is not None and not callable(at_start):
            raise InputError(f"at_start is {at_start!r}; it must be a function without arguments.")
        checks.flag("paused", paused)
        return Snapshot(
            *(self._native_table, self._name, self._layout, aside_bytes, at_start, paused),
            order=self._stamps.order,
        )


class HostMoves:
    """Moves rows between a host table and another store of the same table, for tiers.

    A move reaches no consumer of touched keys and changes no count.
    """

    def __init__(self, layout: RowLayout, native_table: native.Table, stamps: Stamps) -> None:
        self._layout = layout
        self._native_table = native_table
        self._stamps = stamps

    def read_out(self, ids: Int64[Tensor, "n"]) -> MovingRows:
        """Whole rows; those of absent ids are zeros."""
        found = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        room = MovingRows(ids.contiguous(), found, *entry_room(self._layout, len(ids)))
        others = (room.found, room.rows, room.states, room.ts)
        self._native_table.entries(
            room.ids.data_ptr(), len(ids), *(part.data_ptr() for part in others)
        )
        return room

    def move_in(self, moving: MovingRows) -> Bool[Tensor, "n"]:
        """Takes rows, and says which of them found room: here all of them."""
        here = moving.to("cpu")
        parts = [x.contiguous() for x in (here.ids, here.rows, here.states, here.ts)]
        ids_at, *others = (part.data_ptr() for part in parts)
        with memory_errors():
            self._native_table.move_in(ids_at, len(here), *others)
        return all_found(len(here))

    def move_out(self, ids: Int64[Tensor, "n"]) -> None:
        """Removes rows that another store has taken."""
        ids = ids.contiguous()
        gone = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        self._native_table.move_out(ids.data_ptr(), len(ids), gone.data_ptr())

    def saw(self, ts: int) -> None:
        """Notes that a row was written at time `ts` in another store, for `max_ts`."""
        self._native_table.assign(0, 0, 0, ts if self._stamps.order is None else ts << MARK_BITS)
