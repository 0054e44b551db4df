"""Makes room in several caches on one device without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ..core.shapes import Bool, Int32
from ..kernels.layout import LANES
from ..kernels.leave import NEVER
from ..tables.copies import numbers_on
from ..tables.multi.device_group import DeviceGroup
from .caching import CachingTable
from .device_cache_places import places_of
from .device_places import fast_of
from .leaving import Leaving

_SPARE = 512  # of a cache, this part is free after rows have left: steps that need no room
_MOST_SPARE = 64  # where a step needs more than that, up to this part
_SAMPLE = 1 << 14  # slots of each table that say how old the oldest rows are


class Departures:
    """Rows of K alike caches that leave together; the caller has the caches' lock.

    They are chosen on the device, which also counts how many stay: the host learns of it later, and
    reckons until then with more than there are. So rows leave a step before their places are
    needed. Changed ones are written behind the caches by a thread.
    """

    def __init__(
        self,
        caches: Sequence[CachingTable],
        group: DeviceGroup,
        used: Int32[Tensor, "slots"],
        changed: Bool[Tensor, "slots"],
        firsts: Sequence[int],
    ) -> None:
        self._caches, self._group = caches, group
        self._used, self._changed = used, changed
        self._slots = [fast_of(table)._table.buckets * LANES for table in caches]
        device = used.device
        width = min(_SAMPLE, max(self._slots))
        at = torch.arange(width)
        self._sizes = [min(width, slots) for slots in self._slots]
        # Odd steps: every lane of buckets has its share.
        steps = [
            first + at * (n // width | 1) % n for first, n in zip(firsts, self._slots, strict=True)
        ]
        self._samples = torch.stack(steps).to(device)
        self._beyond = (at >= torch.tensor(self._sizes)[:, None]).to(device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._last: Leaving | None = None  # until it has landed
        self._counting: Leaving | None = None  # until the host knows how many stay
        self._thread: ThreadPoolExecutor | None = None

    def make_way(
        self, rows: Sequence[int], now: int, tell_used: Callable[[], None]
    ) -> Sequence[int]:
        """Room for so many rows of each table, if that can be; how much there is, at most that.

        Rows that are used `now` stay: before the first leaves the device is told which.
        """
        needs = [_Need(table, n) for table, n in zip(self._caches, rows, strict=True)]
        self._learn(wait=any(need.now() for need in needs))
        if any(need.soon() for need in needs):
            tell_used()
            if self._counting is None:
                self._leave([need.wanted() for need in needs], now)
                self._learn(wait=any(need.now() for need in needs))
        return [need.rows if not need.now() else need.table.make_way(need.rows) for need in needs]

    def go_on(self) -> None:
        """Rows that have left are written, beside the next step."""
        leaving = self._last
        if leaving is None or leaving.is_started:
            return
        try:
            leaving.start()
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="hedgerow write-back")
            self._thread.submit(leaving.land)
        except Exception:  # no step fails for it: whoever asks for the rows tries again, and fails
            return

    def _leave(self, wanted: Sequence[int], now: int) -> None:
        limit = now - 1
        for table in self._caches:
            if places_of(table).holds:  # of which this knows nothing
                return
            since = table.noted_since()
            limit = limit if since is None else min(limit, since - 1)
        if limit < 0:
            return
        if self._last is not None:  # no more than one at a time: so much memory it may take
            self._last.land()
        # A few more: of those that are as old as the oldest, and from buckets that are full.
        most = [n + n // 8 for n in wanted]
        with self._caches[0]._moves.alone():
            for table in self._caches:
                fast_of(table)._before_change()
            chosen, rows, states = self._group.old_rows(
                *(self._used, self._changed, self._oldest(wanted), most), limit=limit, turn=now
            )
            leaving = Leaving(self._caches, chosen, rows, states, most, self._stream)
            for table in self._caches:
                table._back.follow(leaving)
            # If this breaks off before, rows are written and stay: they are read from the caches.
            for table in self._caches:
                fast_of(table)._epoch = object()
            self._group.take_out(chosen.going, self._used, self._changed)
        for table in self._caches:
            places_of(table).begin_count()
        self._last = self._counting = leaving

    def _oldest(self, wanted: Sequence[int]) -> Int32[Tensor, "K"]:
        """Until when the rows were last used that are to leave, so many of each table."""
        old = self._used[self._samples].masked_fill(self._beyond, NEVER).sort(dim=1).values
        shares = zip(wanted, self._sizes, self._slots, strict=True)
        ranks = [round(n * size / slots) - 1 for n, size, slots in shares]
        at = numbers_on([min(max(0, rank), old.shape[1] - 1) for rank in ranks], old.device)
        return old.gather(1, at[:, None])[:, 0]

    def _learn(self, *, wait: bool) -> None:
        """How many rows there are, if the device has told."""
        leaving = self._counting
        if leaving is None or not (wait or leaving.is_copied()):
            return
        for table, rows in zip(self._caches, leaving.stay(), strict=True):
            places_of(table).end_count(rows)
        self._counting = None


class _Need:
    """Room for rows of one table."""

    def __init__(self, table: CachingTable, rows: int) -> None:
        self.table, self.rows = table, rows
        self._places = places_of(table)
        every = self._places.rows
        self._spare = min(max(every // _SPARE, rows), every // _MOST_SPARE)
        self._all_fit = table.slow.size() <= every  # however many may come twice

    def now(self) -> bool:
        """Whether some must leave before they come."""
        return self._lacks(0) > 0

    def soon(self) -> bool:
        """Whether some must leave, now or in the next step."""
        return self._lacks(1) > 0

    def wanted(self) -> int:
        """How many had better leave: for this step, and for some after it."""
        return max(0, self._lacks(2))

    def _lacks(self, spares: int) -> int:
        return 0 if self._all_fit else self._places.lacks(self.rows + spares * self._spare)
