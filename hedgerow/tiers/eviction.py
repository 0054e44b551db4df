"""Evicts rows of several caches on one device without waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from ..core.ids import distinct_ids
from ..core.shapes import Bool, Float32, Int32, Int64
from ..kernels.layout import LANES
from ..kernels.leave import CROWDED, Chosen
from ..tables.copies import host_room, numbers_on
from ..tables.host_moves import move_in_several
from ..tables.moving import MovingRows
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys
from .caching import CachingTable
from .device_residency import fast_of, places_of
from .misses import Misses


class BucketOverflows:
    """Different keys of each of K tables, up to some; single-owner.

    Keys of earlier batches stay, and of too many of one batch others are kept each time: if one was
    always left out, its row would never find a lane.
    """

    def __init__(self, tables: int) -> None:
        self._ids: list[dict[int, None]] = [{} for _ in range(tables)]
        self._begin = 0  # with which of too many

    def __bool__(self) -> bool:
        return any(self._ids)

    @property
    def counts(self) -> list[int]:
        """How many keys of each table."""
        return list(map(len, self._ids))

    def add(self, rest: Misses) -> None:
        """The rows of these found no lane."""
        for k, share in rest.shares():
            mine, ids = self._ids[k], distinct_ids(rest.ids[share].numpy())
            for id_ in np.roll(ids, -self._begin).tolist():
                if len(mine) == CROWDED:
                    break
                mine[id_] = None

    def take(self, device: torch.device) -> TableKeys | None:
        """All of them, which are forgotten."""
        if not self:
            return None
        splits = (0, *accumulate(self.counts))
        keys = TableKeys(numbers_on([id_ for own in self._ids for id_ in own], device), splits)
        for own in self._ids:
            own.clear()
        self._begin += CROWDED
        return keys


class PendingWriteBack:
    """Copies of rows that will leave, copied to the host and written there; any thread may do it.

    The rows stay in their caches until these have landed. If that fails they are kept, and who asks
    next tries again.
    """

    def __init__(
        self,
        caches: Sequence[CachingTable],
        chosen: Chosen,
        rows: Float32[Tensor, "room dim"],
        states: Float32[Tensor, "room floats"],
        most: Sequence[int],
        stream: torch.cuda.Stream | None,
    ) -> None:
        self._caches, self._stream = caches, stream
        self.limit = chosen.limit  # none of the rows was used after that time
        self._starts = (0, *accumulate(most))
        self._there = (chosen.ids, rows, states, chosen.times, chosen.counts)
        self._left = stream and torch.cuda.current_stream(stream.device).record_event()
        self._here: list[Tensor] | None = None
        self._copied: torch.Event | torch.cuda.Event | None = None
        self._landed = False
        self._lock = Lock()

    def start(self) -> None:
        """Starts to copy them, on a stream of their own."""
        with self._lock:
            self._start()

    @property
    def has_landed(self) -> bool:
        """Whether they are in the stores."""
        return self._landed

    def is_copied(self) -> bool:
        """Whether the host knows of them."""
        return self._here is not None and (self._copied is None or self._copied.query())

    def sizes(self) -> list[int]:
        """How many rows each table had when these were chosen; waits for the device."""
        if not self.is_copied():
            with self._lock:  # who writes the rows has it for longer
                self._numbers()
        assert self._here is not None
        return self._here[-1][:, 2].tolist()

    def land(self) -> None:
        """Brings them to the stores; does nothing if they are there."""
        with self._lock:
            if self._landed:
                return
            changed = self._numbers()[:, 1].tolist()
            assert self._here is not None
            ids, rows, states, ts, _ = self._here
            starts = self._starts[:-1]
            last = [start + n for start, n in zip(starts, changed, strict=True)]
            moving = MovingRows(ids, torch.ones_like(ids, dtype=torch.bool), rows, states, ts)
            move_in_several([table.slow for table in self._caches], starts, last, moving)
            for table, rows_of_it in zip(self._caches, changed, strict=True):
                table.counters.add("write_backs", rows_of_it)
            self._landed, self._here, self._there = True, self._here[-1:], ()

    def _start(self) -> None:
        if self._here is not None:
            return
        here = [host_room(tuple(x.shape), x.dtype, x.device) for x in self._there]
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            if self._stream is not None and self._left is not None:
                self._stream.wait_event(self._left)
            for target, source in zip(here, self._there, strict=True):
                target.copy_(source, non_blocking=True)
        self._copied = self._stream and self._stream.record_event()
        self._here = here

    def _numbers(self) -> Int64[Tensor, "K 3"]:
        """What the device has counted."""
        self._start()
        if self._copied is not None:
            self._copied.synchronize()
        assert self._here is not None
        return self._here[-1]


_SPARE = 512  # of a cache twice this part leaves at once, so that not every step needs room
STEPS_SPARE = 4  # or twice what so many steps need
_LANES_TURN = 32  # uses, two or three of a step: for want of a lane no more often, it may not help
MOST_SPARE = 64  # where a step needs more than that, up to this part


class EvictionScheduler:
    """Rows of K alike caches that leave together; the caller has the caches' lock.

    They are chosen on the device, some steps before their places are needed, and those that were
    changed are written behind the caches by a thread while they are still there: so nobody waits
    for a row that is on its way. The next time those leave that were not used since. The device
    also counts rows: the host learns of it later, and reckons until then with more than there are.
    """

    def __init__(
        self,
        caches: Sequence[CachingTable],
        group: DeviceGroup,
        used: Int32[Tensor, "slots"],
        changed: Bool[Tensor, "slots"],
        left: Int64[Tensor, "K"],
    ) -> None:
        self._caches, self._group = caches, group
        self._used, self._changed, self._left = used, changed, left
        self._slots = [fast_of(table).arrays.buckets * LANES for table in caches]
        device = used.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        # One for all tables: rows that set out are followed by all of them, or by none.
        self._pending: deque[PendingWriteBack] = deque()
        for table in caches:
            table._back.follow(self._pending)
        self._next: _Next | None = None  # those that leave the next time
        self._counting: PendingWriteBack | None = (
            None  # until the host knows how many rows there are
        )
        self._thread: ThreadPoolExecutor | None = None
        self._handed_over: PendingWriteBack | None = None  # to it
        self._crowded = BucketOverflows(len(caches))
        self._turned = -_LANES_TURN  # the time of the last turn

    def make_way(
        self, rows: Sequence[int], now: int, asked: int | None, tell_used: Callable[[], None]
    ) -> Sequence[int]:
        """Room for so many rows of each table, if that can be; how much there is, at most that.

        Rows that are used `now` stay: before the first leaves the device is told which. So do those
        that came since others `asked` for what was not there: they would read what is old.
        """
        if not self._crowded and self._have_room(rows):
            return rows
        last = now if asked is None else min(now, asked)
        needs = [_Need(table, n) for table, n in zip(self._caches, rows, strict=True)]
        self._learn(wait=any(need.now() > 0 for need in needs))
        lanes = bool(self._crowded) and now - self._turned >= _LANES_TURN
        if lanes or any(need.soon() > 0 for need in needs):
            at_once = any(need.now() > 0 for need in needs)
            if at_once or self._is_ready():
                tell_used()
                if self._counting is None:
                    self._turn_over(needs, now, last)
                    self._learn(wait=at_once)
                if any(need.now() > 0 for need in needs):  # they cannot wait for the next time
                    self._turn_over(needs, now, last)
                    self._learn(wait=True)
        return [need.rows if need.now() <= 0 else need.table.make_way(need.rows) for need in needs]

    def _have_room(self, rows: Sequence[int]) -> bool:
        """Whether all tables have room for so many, and for those of the next step: most often."""
        for table, n in zip(self._caches, rows, strict=True):
            if n and _Need(table, n).soon() > 0:
                return False
        return True

    def found_no_lane(self, rest: Misses) -> None:
        """Rows of these keys came, and their buckets were full: one there must leave for each.

        However much room there is elsewhere: they would come again with each step. But no others:
        what leaves comes again, too, some rows in each of very many steps.
        """
        self._crowded.add(rest)

    def _is_ready(self) -> bool:
        """Whether rows can leave without a wait: they are written, and counted."""
        return self._counting is None and (self._next is None or self._next.leaving.has_landed)

    def go_on(self) -> None:
        """Rows that will leave are written, beside the next step."""
        after = self._next  # once: the lookup of another thread may replace it
        if after is None or after.leaving is self._handed_over:
            return
        try:
            after.leaving.start()
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="hedgerow write-back")
            self._thread.submit(after.leaving.land)
            self._handed_over = after.leaving
        except Exception:  # no step fails for it: whoever asks for the rows tries again, and fails
            return

    def _turn_over(self, needs: Sequence[_Need], now: int, last: int) -> None:
        """Those that were chosen before leave; others are chosen that were used before `last`."""
        if any(places_of(table).holds for table in self._caches):  # of which this knows nothing
            return
        since = self._caches[0]._notes.since()
        limit = last - 1 if since is None else min(last, since) - 1
        # All, even if to choose them broke off: they may be clean, and are older than the next.
        self._caches[0]._back.land()
        ready = [0] * len(needs) if self._next is None else self._next.most
        wanted = [need.wanted(n) for need, n in zip(needs, ready, strict=True)]
        with self._caches[0]._moves.alone():
            for table in self._caches:
                fast_of(table).before_change()
            if self._next is not None:
                for table in self._caches:
                    fast_of(table).epoch = object()
                chosen, self._next = self._next.chosen, None
                self._group.take_out(chosen, self._used, self._changed, self._left)
            for table in self._caches:
                places_of(table).uncounted()
            # A few more: of those that are as old as the oldest, and from buckets that are full.
            most = [
                n + n // 8 if n else keys
                for n, keys in zip(wanted, self._crowded.counts, strict=True)
            ]
            crowded, self._turned = self._crowded.take(self._used.device), now
            if limit >= 0 and any(most):
                self._choose(wanted, most, limit, now, crowded)

    def _choose(
        self,
        wanted: Sequence[int],
        most: Sequence[int],
        limit: int,
        now: int,
        crowded: TableKeys | None,
    ) -> None:
        shares = [n / slots for n, slots in zip(wanted, self._slots, strict=True)]
        chosen, rows, states = self._group.old_rows(
            *(self._used, self._changed, shares, most), limit=limit, turn=now, crowded=crowded
        )
        leaving = PendingWriteBack(self._caches, chosen, rows, states, most, self._stream)
        self._pending.append(leaving)
        # If this breaks off before, rows are written that are still said to be changed.
        self._group.clean(chosen, self._changed)
        for table in self._caches:
            places_of(table).begin_count()
        self._next, self._counting = _Next(chosen, most, leaving), leaving

    def _learn(self, *, wait: bool) -> None:
        """How many rows there are, if the device has told."""
        leaving = self._counting
        if leaving is None or not (wait or leaving.is_copied()):
            return
        for table, rows in zip(self._caches, leaving.sizes(), strict=True):
            places_of(table).end_count(rows)
        self._counting = None


@dataclass(frozen=True, slots=True, eq=False)
class _Next:
    """Rows that leave the next time, at most so many of each table."""

    chosen: Chosen
    most: Sequence[int]
    leaving: PendingWriteBack


class _Need:
    """Room for rows of one table; how many others must leave for them."""

    def __init__(self, table: CachingTable, rows: int) -> None:
        self.table, self.rows = table, rows
        self._places = places_of(table)
        every = self._places.rows
        self.spare = min(max(every // _SPARE, STEPS_SPARE * rows), every // MOST_SPARE)

    def now(self) -> int:
        """Before they come."""
        return self._lacks(0)

    def soon(self) -> int:
        """Before those of the next step, too."""
        return self._lacks(1)

    def wanted(self, ready: int) -> int:
        """How many had better be chosen, beside so many that are."""
        later = 2 * self.spare if self._lacks(2) > 0 else 0
        return later + max(0, self._lacks(0) - ready)

    def _lacks(self, spares: int) -> int:
        lacking = self._places.lacks(self.rows + spares * self.spare)
        # Where all rows fit none must leave, however many may have been counted twice.
        return 0 if lacking <= 0 or self.table.slow.size() <= self._places.rows else lacking
