"""Times of writes that can be trusted, and the stamps that rows get of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.clock import Clock
from ..core.counters import Counters
from ..core.shapes import Int64
from .leave_order import LeaveOrder, shown
from .store import Entries

_FUTURE_S = 3600  # how far clocks of other machines may run ahead


class Stamps:
    """The stamps that the writes of one table give to rows.

    A stamp is the time of the write, or what `LeaveOrder` makes of that time if the table has a
    rule of room. A time that lies far in the future is replaced by the clock's time and counted
    as the event `clamped_ts`: one bogus time would expire all other rows.
    """

    clock: Clock
    _events: Counters
    _order: LeaveOrder | None

    def __init__(self, clock: Clock, events: Counters, order: LeaveOrder | None) -> None:
        self.clock, self._events, self._order = clock, events, order

    def next_time(self, ts: int) -> int:
        """The time of a write."""
        ts = checks.count("ts", ts)
        now_s = self.clock.now_s() if ts else 0
        if ts <= now_s + _FUTURE_S:
            return ts
        self._events.add("clamped_ts")
        return now_s

    def stamp(self, ts: int, uses: int) -> int:
        """Return the stamp of a write at time `ts` that uses `uses` ids."""
        ts = self.next_time(ts)
        return ts if self._order is None else self._order.stamp(ts, uses)

    @property
    def order(self) -> LeaveOrder | None:
        """What tells the order in which rows leave; None without a rule of room."""
        return self._order

    def share_order(self, order: LeaveOrder | None) -> None:
        """From now on marks come from there: the order of another store of the same table."""
        self._order = order

    def second(self, stamp: int) -> int:
        """The time of a stamp."""
        return stamp if self._order is None else self._order.second(stamp)

    def stamps_of(self, entries: Entries) -> Int64[Tensor, "n"]:
        """The stamps of rows that are restored."""
        now_s, times = self.clock.now_s(), entries.ts.numpy()
        beyond, ts = times > now_s + _FUTURE_S, entries.ts
        if beyond.any():
            self._events.add("clamped_ts", int(beyond.sum()))
            ts = torch.from_numpy(np.where(beyond, now_s, times))
        if self._order is None:
            return ts
        stamps = self._order.stamps(ts, entries.order)
        self._order.saw(stamps)
        return stamps

    def times_of(
        self, stamps: Int64[Tensor, "n"]
    ) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"] | None]:
        """Times and marks of stamps, as `Entries` has them."""
        return shown(self._order, stamps)

    _second, _stamps, _shown = second, stamps_of, times_of  # as the host table calls them
