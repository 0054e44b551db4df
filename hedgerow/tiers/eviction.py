"""Evicts rows of several caches on one device, without waiting for the device."""

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
from ..kernels.leave import CROWDED, EvictionCandidates
from ..tables.host import move_in_several
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys
from ..tables.transfer import MovingRows, host_room, numbers_on
from .caching import CachingTable
from .device_residency import device_map_of, device_store_of
from .misses import Misses

# An eviction chooses twice its spare rows. These are the larger of 1/512 of a cache and the rows
# that four steps need, but at most 1/64 of the cache. So not every step needs an eviction.
_SPARE = 512
STEPS_SPARE = 4
MOST_SPARE = 64
_OVERFLOW_TICKS = 32  # uses (two or three per step) between two evictions for overflows alone


class EvictionScheduler:
    """Evicts rows of K caches that step together. The caller holds the caches' write lock.

    The device chooses rows some steps before their slots are needed. A thread writes the dirty ones
    to the slow stores while they are still resident, so that no step waits for a row in flight. The
    next eviction removes those that were not used since. The device also counts the rows of the
    caches. The host learns the counts later, and works with upper bounds until then.
    """

    def __init__(
        self,
        caches: Sequence[CachingTable],
        group: DeviceGroup,
        used: Int32[Tensor, "slots"],
        changed: Bool[Tensor, "slots"],
        left: Int64[Tensor, "K"],
    ) -> None:
        self._caches, self.device_group = caches, group
        self._used, self._changed, self._left = used, changed, left
        self._slots = [device_store_of(table).arrays.buckets * LANES for table in caches]
        device = used.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        # One for all tables: a write-back in progress contains rows of all of them.
        self._pending: deque[PendingWriteBack] = deque()
        for table in caches:
            table.moves.write_back.follow(self._pending)
        self.next: NextEviction | None = None
        self.counting: PendingWriteBack | None = None  # until the host knows the counts of rows
        self.thread: ThreadPoolExecutor | None = None
        self._handed_over: PendingWriteBack | None = None  # to the thread
        self._overflows = BucketOverflows(len(caches))
        self._turned = -_OVERFLOW_TICKS  # the time of the last eviction

    def make_room(
        self, rows: Sequence[int], now: int, asked: int | None, tell_used: Callable[[], None]
    ) -> Sequence[int]:
        """Evicts rows until `rows` of each table can be fetched. Returns how many of these can.

        Rows that are used `now` stay: `tell_used` marks them on the device before the first row
        leaves. Rows that were used since the oldest prefetch request, at the time `asked`, stay,
        too: that request may read them from the slow store.
        """
        if not self._overflows and self._have_room(rows):
            return rows
        last = now if asked is None else min(now, asked)
        needs = [Need(table, n) for table, n in zip(self._caches, rows, strict=True)]
        self.learn_counts(wait=any(need.now() > 0 for need in needs))
        overflow = bool(self._overflows) and now - self._turned >= _OVERFLOW_TICKS
        if overflow or any(need.soon() > 0 for need in needs):
            at_once = any(need.now() > 0 for need in needs)
            if at_once or self._is_ready():
                tell_used()
                if self.counting is None:
                    self.turn_over(needs, now, last)
                    self.learn_counts(wait=at_once)
                if any(need.now() > 0 for need in needs):  # they cannot wait for the next call
                    self.turn_over(needs, now, last)
                    self.learn_counts(wait=True)
        return [
            need.rows if need.now() <= 0 else need.table.moves.make_room(need.rows)
            for need in needs
        ]

    def _have_room(self, rows: Sequence[int]) -> bool:
        """Returns whether all tables can take these rows and those of the next step."""
        for table, n in zip(self._caches, rows, strict=True):
            if n and Need(table, n).soon() > 0:
                return False
        return True

    def overflowed(self, misses: Misses) -> None:
        """Records keys whose rows were fetched but found no lane in their full buckets.

        For each, one row of the bucket must leave. Otherwise every step would fetch the row again,
        even if other buckets have free lanes. Rows of other buckets do not leave for it, since they
        would have to be fetched again, too.
        """
        self._overflows.add(misses)

    def _is_ready(self) -> bool:
        """Returns whether rows can leave without a wait: they are written back and counted."""
        return self.counting is None and (self.next is None or self.next.write_back.has_landed)

    def go_on(self) -> None:
        """Makes the thread write the rows that leave next, in parallel to the next step."""
        after = self.next  # read once: the lookup of another thread may replace it
        if after is None or after.write_back is self._handed_over:
            return
        try:
            after.write_back.start()
            if self.thread is None:
                self.thread = ThreadPoolExecutor(1, thread_name_prefix="hedgerow write-back")
            self.thread.submit(after.write_back.land)
            self._handed_over = after.write_back
        except Exception:  # this step does not fail: a later step that needs the rows tries again
            return

    def turn_over(self, needs: Sequence[Need], now: int, last: int) -> None:
        """Removes the rows that were chosen before. Chooses others, last used before `last`."""
        if any(
            device_map_of(table).has_pins for table in self._caches
        ):  # the kernels of a group ignore pins: tables evict one by one
            return
        since = self._caches[0].moves.log.since()
        limit = last - 1 if since is None else min(last, since) - 1
        # Writes all copies that are pending, also those of a choice that failed half way: their
        # rows may be marked clean already, and an older copy must not overwrite a newer one.
        self._caches[0].moves.write_back.land()
        ready = [0] * len(needs) if self.next is None else self.next.most
        wanted = [need.wanted(n) for need, n in zip(needs, ready, strict=True)]
        with self._caches[0].pair.move_lock.alone():
            for table in self._caches:
                device_store_of(table).before_change()
            if self.next is not None:
                for table in self._caches:
                    device_store_of(table).epoch = object()
                chosen, self.next = self.next.chosen, None
                self.device_group.take_out(chosen, self._used, self._changed, self._left)
            for table in self._caches:
                device_map_of(table).uncounted()
            # A few more, for rows of equal age and for full buckets.
            most = [
                n + n // 8 if n else keys
                for n, keys in zip(wanted, self._overflows.counts, strict=True)
            ]
            overflows, self._turned = self._overflows.take(self._used.device), now
            if limit >= 0 and any(most):
                self._choose(wanted, most, limit, now, overflows)

    def _choose(
        self,
        wanted: Sequence[int],
        most: Sequence[int],
        limit: int,
        now: int,
        overflows: TableKeys | None,
    ) -> None:
        shares = [n / slots for n, slots in zip(wanted, self._slots, strict=True)]
        chosen, rows, states = self.device_group.old_rows(
            *(self._used, self._changed, shares, most), limit=limit, turn=now, crowded=overflows
        )
        pending = PendingWriteBack(self._caches, chosen, rows, states, most, self._stream)
        self._pending.append(pending)
        # If this fails before `clean`, rows are written that are still marked as dirty.
        self.device_group.clean(chosen, self._changed)
        for table in self._caches:
            device_map_of(table).begin_count()
        self.next, self.counting = NextEviction(chosen, most, pending), pending

    def learn_counts(self, *, wait: bool) -> None:
        """Takes the counts of rows from the device if they have arrived, or if `wait` is True."""
        pending = self.counting
        if pending is None or not (wait or pending.is_copied()):
            return
        for table, rows in zip(self._caches, pending.sizes(), strict=True):
            device_map_of(table).end_count(rows)
        self.counting = None


@dataclass(frozen=True, slots=True, eq=False)
class NextEviction:
    """Rows that leave in the next eviction, at most `most` of each table."""

    chosen: EvictionCandidates
    most: Sequence[int]
    write_back: PendingWriteBack


class Need:
    """The number of new rows of one table, and how many others must leave for them."""

    def __init__(self, table: CachingTable, rows: int) -> None:
        self.table, self.rows = table, rows
        self._resident = device_map_of(table)
        every = self._resident.rows
        self.spare = min(max(every // _SPARE, STEPS_SPARE * rows), every // MOST_SPARE)

    def now(self) -> int:
        """Returns how many rows must leave before the new rows are fetched."""
        return self._lacks(0)

    def soon(self) -> int:
        """Returns how many rows must leave before the new rows and those of the next step."""
        return self._lacks(1)

    def wanted(self, ready: int) -> int:
        """Returns how many rows to choose, if `ready` are chosen already."""
        later = 2 * self.spare if self._lacks(2) > 0 else 0
        return later + max(0, self._lacks(0) - ready)

    def _lacks(self, spares: int) -> int:
        lacking = self._resident.lacks(self.rows + spares * self.spare)
        # If all rows fit, none must leave, even if the upper bound is higher.
        return 0 if lacking <= 0 or self.table.slow.size() <= self._resident.rows else lacking


class PendingWriteBack:
    """Copies of rows that will leave, in flight to the slow stores. Any thread may write them.

    The rows stay in their caches until the copies are written. If a write fails, the copies are
    kept, and the next call that needs them tries again. Owns a lock.
    """

    def __init__(
        self,
        caches: Sequence[CachingTable],
        chosen: EvictionCandidates,
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
        """Starts to copy the rows to the host, on a separate stream."""
        with self._lock:
            self._start()

    @property
    def has_landed(self) -> bool:
        """Whether the rows are in the slow stores."""
        return self._landed

    def is_copied(self) -> bool:
        """Returns whether the rows are on the host."""
        return self._here is not None and (self._copied is None or self._copied.query())

    def sizes(self) -> list[int]:
        """Returns how many rows each table had when these were chosen. Waits for the device."""
        if not self.is_copied():
            with self._lock:  # `land` holds it for longer
                self._numbers()
        assert self._here is not None
        return self._here[-1][:, 2].tolist()

    def land(self) -> None:
        """Writes the rows to the slow stores. A second call does nothing."""
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
        """Returns the counts of the device."""
        self._start()
        if self._copied is not None:
            self._copied.synchronize()
        assert self._here is not None
        return self._here[-1]


class BucketOverflows:
    """The distinct keys of each of K tables whose rows found no lane. Single-owner.

    It keeps at most `CROWDED` keys per table. Keys of earlier batches stay. If a batch has too
    many, each time others of them are kept: a key that was always excluded would never find a lane.
    """

    def __init__(self, tables: int) -> None:
        self._ids: list[dict[int, None]] = [{} for _ in range(tables)]
        self._begin = 0  # offset of the first key that is kept if there are too many

    def __bool__(self) -> bool:
        return any(self._ids)

    @property
    def counts(self) -> list[int]:
        """The number of keys of each table."""
        return list(map(len, self._ids))

    def add(self, misses: Misses) -> None:
        """Adds keys whose rows found no lane."""
        for k, share in misses.shares():
            mine, ids = self._ids[k], distinct_ids(misses.ids[share].numpy())
            for id_ in np.roll(ids, -self._begin).tolist():
                if len(mine) == CROWDED:
                    break
                mine[id_] = None

    def take(self, device: torch.device) -> TableKeys | None:
        """Returns and removes all keys."""
        if not self:
            return None
        splits = (0, *accumulate(self.counts))
        keys = TableKeys(numbers_on([id_ for own in self._ids for id_ in own], device), splits)
        for own in self._ids:
            own.clear()
        self._begin += CROWDED
        return keys
