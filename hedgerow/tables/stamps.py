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
    """Turns the times of writes into the stamps of rows; a part of every table.

    A stamp is the time, or what `LeaveOrder` makes of it where the table has a rule of room. A time
    more than an hour ahead of the clock would expire all other rows, so it becomes the clock's time
    and counts as a `clamped_ts` event.

    >>> from hedgerow.core.clock import ManualClock
    >>> stamps = Stamps(ManualClock(1000), Counters(), None)
    >>> stamps.stamp(990, uses=1), stamps.stamp(10**9, uses=1)
    (990, 1000)
    """

    def __init__(self, clock: Clock, events: Counters, order: LeaveOrder | None) -> None:
        self.clock = clock
        self.order = order
        self._events = events

    def next_time(self, ts: int) -> int:
        """The time of a write."""
        ts = checks.count("ts", ts)
        now_s = self.clock.now_s() if ts else 0
        if ts <= now_s + _FUTURE_S:
            return ts
        self._events.add("clamped_ts")
        return now_s

    def stamp(self, ts: int, uses: int) -> int:
        """The stamp of a write at time `ts` that uses `uses` ids."""
        ts = self.next_time(ts)
        return ts if self.order is None else self.order.stamp(ts, uses)

    def share_order(self, order: LeaveOrder | None) -> None:
        """Uses the order of another store of the same table from now on, so that marks compare."""
        self.order = order

    def second(self, stamp: int) -> int:
        """The time of a stamp."""
        return stamp if self.order is None else self.order.second(stamp)

    def stamps_of(self, entries: Entries) -> Int64[Tensor, "n"]:
        """The stamps of rows that are put back."""
        now_s, times = self.clock.now_s(), entries.ts.numpy()
        beyond, ts = times > now_s + _FUTURE_S, entries.ts
        if beyond.any():
            self._events.add("clamped_ts", int(beyond.sum()))
            ts = torch.from_numpy(np.where(beyond, now_s, times))
        if self.order is None:
            return ts
        stamps = self.order.stamps(ts, entries.order)
        self.order.saw(stamps)
        return stamps

    def times_of(
        self, stamps: Int64[Tensor, "n"]
    ) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"] | None]:
        """Times and marks of stamps, as `Entries` has them."""
        return shown(self.order, stamps)
