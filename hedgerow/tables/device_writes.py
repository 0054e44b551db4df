"""Writes to a device table except optimizer steps, their common part, and moves of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError, NotFiniteError
from ..core.shapes import Bool, Float32, Int8, Int64
from ..core.use_weights import weights_times
from ..kernels import assign, find, lookup
from ..kernels.evict import touch
from ..kernels.layout import LANES, MARK, NEWBORN, TIMES, Grouped, group
from .config import TableConfig
from .device_policies import DeviceAdmission, DeviceFullPolicy, GroupedOccurrences
from .device_slots import DeviceFeed, DeviceSlots, RowTimes
from .eviction import WriteStamps
from .store import Applied, Entries, TableKeys
from .transfer import MovingRows

_BORN = 2**40  # `apply` adds this to the slots of new rows
_LEAST_SQUARE = 2.0**-126  # a smaller sum of squares counts as a zero row for skip_zero_embedding


@dataclass(slots=True, eq=False)
class Write:
    """One writing call: the stamp that its rows get, and its counters."""

    now: int
    done: Int64[Tensor, "3"]  # rows inserted, refused, dropped
    kept_out: Int64[Tensor, ""] | None = None  # ids refused by the admission rule


class DeviceWrites:
    """Writes rows. The table has checked the arguments.

    Every write takes the same steps. `start` lets open snapshots copy rows and lets the table grow.
    `admitted` and `give_way` decide which ids get a row. A kernel writes. `note` updates change
    feeds and scores. `finish` adds up the counters. A method waits for the device only where its
    docstring says so.
    """

    def __init__(
        self,
        config: TableConfig,
        slots: DeviceSlots,
        times: RowTimes,
        stamps: WriteStamps,
        feed: DeviceFeed,
        admission: DeviceAdmission | None,
    ) -> None:
        self._config, self._slots, self._times = config, slots, times
        self._stamps, self._feed, self._admission = stamps, feed, admission
        self.admits_all = admission is None
        self._room = DeviceFullPolicy(config.name, slots, feed, stamps)
        self._restoring = Lock()

    # ---- the steps of every write

    def start(self, ts: int, n: int, *, uses: int | None = None) -> Write:
        """Starts a call at time `ts` that may insert `n` ids and has `uses` uses (None: `n`)."""
        now = self._stamps.stamp(ts, n if uses is None else uses)
        self.begin(now, n)
        return Write(now, torch.zeros(3, dtype=torch.int64, device=self._slots.device))

    def begin(self, now: int, n: int) -> None:
        """Prepares for a write of `n` ids with this stamp."""
        self._feed.before_change()
        self._slots.make_room(n)
        self._times.wrote(now, n, captured=self._slots.is_capturing())

    def finish(self, write: Write) -> Applied:
        """Adds the counters of a call to the table's counters, and returns them.

        A table with full="raise" waits for the device and raises an error if ids found no slot.
        """
        done = write.done
        self._slots.totals[:3] += done
        if self._slots.full == "raise":
            refused = done[1]
            self._room.raise_if_full(
                refused if write.kept_out is None else refused - write.kept_out
            )
        return Applied(done)

    def admitted(
        self,
        grouped: Grouped,
        used: Tensor | None,
        write: Write,
        step: int,
        counts: Tensor | None = None,
    ) -> Grouped:
        """Returns the same groups; those that the admission rule refuses become padding."""
        if self.admits_all:
            return grouped
        seen = GroupedOccurrences.of(grouped, used, counts)
        refused = self.refused(grouped, seen, write, step, each=False)
        return grouped if refused is None else _without(grouped, refused)

    def refused(
        self, grouped: Grouped, seen: GroupedOccurrences, write: Write, step: int, *, each: bool
    ) -> Bool[Tensor, "n"] | None:
        """Returns which occurrences the admission rule refuses; None if the table admits every id.

        Refused occurrences are counted. With `each`, the rule decides for every occurrence
        separately.
        """
        if self._admission is None:
            return None
        absent = find.find(self._slots.arrays, grouped.ids) < 0
        refused = self._admission.refused(seen, absent, step, each=each)
        write.kept_out = refused.sum()
        write.done[1] += write.kept_out
        return refused

    def give_way(self, grouped: Grouped, wanted: Bool[Tensor, "n"], write: Write) -> None:
        """With full="evict", evicts rows for the `wanted` ids, which are one per group."""
        if self._slots.full == "evict":
            self._room.give_way(grouped, wanted, write.now, write.done)

    def _make_way(
        self, grouped: Grouped, used: Tensor | None, usable: Tensor, write: Write
    ) -> None:
        """With full="evict", evicts rows for the ids that have a usable row to write."""
        if self._slots.full != "evict":
            return
        seen = GroupedOccurrences.of(grouped, used, None)
        good = seen.live & usable[_order(grouped).clamp(max=len(usable) - 1)]
        self.give_way(grouped, seen.total(good.long()) > 0, write)

    def is_watched(self, *, learned: bool) -> bool:
        """Returns whether a write must report which rows it wrote."""
        return self._slots.scored or self._feed.is_watched(learned=learned)

    def room_for_slots(self, grouped: Grouped, *, learned: bool) -> Int64[Tensor, "n"] | None:
        """Returns a tensor for the slots that a kernel writes; None if nothing needs them."""
        return torch.empty_like(grouped.ids) if self.is_watched(learned=learned) else None

    def note(
        self,
        grouped: Grouped,
        placed: Int64[Tensor, "n"] | None,
        *,
        learned: bool = False,
        use: int | None = None,
        used: Int64[Tensor, "1"] | None = None,
        counts: Int64[Tensor, "n"] | None = None,
    ) -> None:
        """Reports the written rows to change feeds, and updates their scores.

        `placed` holds the slot of each written row at one occurrence of its id, and is negative at
        all other occurrences. `use` is the stamp of the call if its ids count as uses of their
        rows, 0 if they do not, and None if the rows bring stamps of their own. `counts` says how
        many occurrences each id stands for.
        """
        if placed is None:
            return
        self._feed.mark(grouped.ids, placed >= 0, learned=learned)
        if not self._slots.scored:
            return
        slots = torch.where(placed >= 0, placed % _BORN, -1)
        order = self._stamps.order
        if use is not None and order is not None and order.by_use:
            seen = GroupedOccurrences.of(grouped, used, counts)
            weights = weights_times(use & MARK, seen.total(seen.occurrences))
            touch(self._slots.arrays, slots, weights, "use")
        else:
            self._slots.score(slots)

    # ---- the methods of the table

    def assign(
        self,
        keys: TableKeys,
        rows: Float32[Tensor, "n dim"],
        usable: Bool[Tensor, "n"],
        ts: int,
    ) -> Applied:
        """Sets rows; of equal ids, the last one wins."""
        slots, write = self._slots, self.start(ts, len(keys.ids))
        with slots.on_device():
            step = self._stamps.second(write.now)
            grouped = self.admitted(group(keys.ids), keys.used, write, step)
            if self._config.skip_zero_embedding:
                grouped = self._skip_zeros(grouped, keys.used, rows, usable, write)
            self._make_way(grouped, keys.used, usable, write)
            placed = self.room_for_slots(grouped, learned=False)
            assign.assign(
                *(slots.arrays, grouped, rows, usable, slots.starts),
                *(write.done, write.now, keys.used),
                placed=placed,
            )
            self.note(grouped, placed, use=write.now, used=keys.used)
        return self.finish(write)

    def assign_add(
        self,
        keys: TableKeys,
        rows: Float32[Tensor, "n dim"],
        usable: Bool[Tensor, "n"],
        ts: int,
    ) -> Applied:
        """Adds to rows; an absent row starts from its initial value."""
        slots, write = self._slots, self.start(ts, len(keys.ids))
        with slots.on_device():
            step = self._stamps.second(write.now)
            grouped = self.admitted(group(keys.ids), keys.used, write, step)
            self._make_way(grouped, keys.used, usable, write)
            begun = torch.empty_like(rows)
            lookup.lookup(slots.arrays, grouped.ids, begun, slots.parts)
            placed = self.room_for_slots(grouped, learned=False)
            assign.assign_add(
                *(slots.arrays, grouped, rows, usable, begun, slots.starts),
                *(write.done, write.now, keys.used, placed),
            )
            self.note(grouped, placed, use=write.now, used=keys.used)
        return self.finish(write)

    def restore(self, entries: Entries) -> Applied:
        """Writes whole rows back. It owns a lock, so several threads may restore at once."""
        given = entries.to("cpu")
        n = len(given.ids)
        checks.tensor("ids", given.ids, torch.int64, (None,))
        checks.tensor("found", given.found, torch.bool, (n,))
        checks.tensor("ts", given.ts, torch.int64, (n,))
        checks.tensor("rows", given.rows, torch.float32, (n, self._slots.layout.dim))
        if not given.found.numpy().all():
            raise InputError("entries holds ids that were not found; select those with found True.")
        if n and int(given.ts.min()) < 0:
            raise InputError(f"ts holds {int(given.ts.min())}; a time is at least 0.")
        states: Sequence[Mapping[str, Tensor]] = given.states
        if self._config.serving:
            states = [{} for _ in self._config.segments]
        raw, stamps = self._slots.layout.join(states, n), self._stamps.stamps_of(given)
        newest = int(stamps.max()) if n else 0
        with self._restoring, self._slots.on_device():
            device = self._slots.device
            moving = MovingRows(given.ids, given.found, given.rows, raw, stamps).to(device)
            return self._restore(moving, newest)

    def _restore(self, given: MovingRows, newest: int) -> Applied:
        rows, usable = given.rows, self.usable_rows(given.rows, None)
        self.begin(newest, len(given))
        self._times.oldest = 0  # restored rows may have any time
        slots = self._slots
        write = Write(newest, torch.zeros(3, dtype=torch.int64, device=slots.device))
        grouped = group(given.ids)
        if self._config.skip_zero_embedding:
            grouped = self._skip_zeros(grouped, None, rows, usable, write)
        placed = self.room_for_slots(grouped, learned=False)
        assign.assign(
            *(slots.arrays, grouped, rows, usable, slots.starts, write.done),
            *(0, None, given.states, given.ts),
            placed=placed,
        )
        self.note(grouped, placed)
        return self.finish(write)

    def reinitialize(self, keys: TableKeys) -> Int8[Tensor, "n"]:
        """Resets rows and states, at the clock's time; returns 1 per key that had a row, else 0."""
        slots, n = self._slots, len(keys.ids)
        newest = self._times.newest  # `newest` counts only times that callers gave
        write = self.start(self._stamps.clock.now_s(), n, uses=0)
        self._times.newest = newest
        with slots.on_device():
            before = find.find(slots.arrays, keys.ids, keys.used) >= 0
            grouped = group(keys.ids)
            rows, states = slots.first_rows(keys.ids)
            usable = torch.ones_like(before)
            placed = torch.empty_like(grouped.ids)
            assign.assign(
                *(slots.arrays, grouped, rows, usable, slots.starts, write.done),
                *(write.now, keys.used, states, None, placed),
            )
            self.note(grouped, placed, learned=True, use=0)
            seen = GroupedOccurrences.of(grouped, keys.used, None)
            again = torch.empty_like(before).scatter_(0, _order(grouped), seen.number > 0)
            there = find.find(slots.arrays, keys.ids, keys.used) >= 0
        self.finish(write)
        return (there & (before | again)).to(torch.int8)

    def erase(self, keys: TableKeys) -> Bool[Tensor, "n"]:
        """Removes rows; returns which keys had a row."""
        with self._slots.on_device():
            return self._erase(keys.ids, group(keys.ids), keys.used)

    def clear(self) -> None:
        """Removes all rows."""
        self._feed.before_change()
        self._slots.clear()
        self._times.oldest = None
        self._feed.mark_all()

    def usable_rows(self, rows: Tensor, used: Tensor | None) -> Bool[Tensor, "n"]:
        """Returns which rows are finite.

        If the table rejects rows that are not finite, it waits for the device and raises an error.
        """
        usable = rows.isfinite().all(dim=1)
        if self._config.not_finite != "reject":
            return usable
        wrong = ~usable
        if used is not None:
            wrong &= torch.arange(len(usable), device=usable.device) < used
        if bool(wrong.any()):
            raise NotFiniteError(
                f"rows[{int(wrong.nonzero()[0])}] is not finite; table {self._config.name!r} "
                f"rejects that, and nothing was changed. Find its source, or make the table with "
                f"not_finite='drop'."
            )
        return usable

    # ---- helpers

    def _erase(self, ids: Tensor, grouped: Grouped, used: Tensor | None) -> Bool[Tensor, "n"]:
        self._feed.before_change()
        erased = self._slots.erase(grouped, used)
        self._feed.mark(ids, erased)
        self._slots.totals[3] += erased.sum()
        return erased

    def _skip_zeros(
        self, grouped: Grouped, used: Tensor | None, rows: Tensor, usable: Tensor, write: Write
    ) -> Grouped:
        """Erases ids whose new row is all zeros; returns the groups that remain to be written."""
        seen, order = GroupedOccurrences.of(grouped, used, None), _order(grouped)
        source = torch.where(seen.live & usable[order], order, -1)
        winner = torch.full_like(source, -1).scatter_reduce_(0, seen.start, source, "amax")
        winner = winner[seen.start]
        small = (rows * rows).sum(dim=1) < _LEAST_SQUARE
        skipped = seen.live & (winner >= 0) & small[winner.clamp(min=0)]
        write.done[2] += (skipped & ~usable[order]).sum()
        ids = torch.empty_like(grouped.ids).scatter_(0, order, grouped.ids)
        self._erase(ids, _without(grouped, ~skipped), used)
        return _without(grouped, skipped)


class DeviceMoves:
    """Moves whole rows out of a table and into it, for tiers. Every call waits for the device.

    A move changes no counter and does not appear in change feeds.
    """

    def __init__(
        self, slots: DeviceSlots, times: RowTimes, feed: DeviceFeed, writes: DeviceWrites
    ) -> None:
        self._slots, self._times, self._feed, self._writes = slots, times, feed, writes

    def read_out(self, ids: Int64[Tensor, "n"]) -> MovingRows:
        """Returns whole rows, on the device; absent ids give zeros."""
        ids, slots = ids.to(self._slots.device), self._slots
        with slots.on_device():
            return slots.moving_rows(slots.arrays, ids, find.find(slots.arrays, ids))

    def move_in(self, moving: MovingRows) -> Bool[Tensor, "n"]:
        """Takes rows from any device; returns which of them found a slot."""
        there, n, slots = moving.to(self._slots.device), len(moving), self._slots
        if not n:
            return there.found
        self._writes.begin(0, n)
        uncounted = torch.zeros(3, dtype=torch.int64, device=slots.device)
        self._times.is_timed = True
        slots.moved()
        with slots.on_device():
            assign.assign(
                *(slots.arrays, group(there.ids), there.rows, torch.ones_like(there.found)),
                *(slots.starts, uncounted, 0, None, there.states, there.ts),
            )
            placed = find.find(slots.arrays, there.ids)
            if slots.scored:
                slots.score(placed)
            return placed >= 0

    def move_out(self, ids: Int64[Tensor, "n"]) -> None:
        """Removes rows. The ids must be distinct."""
        if len(ids):
            self._feed.before_change()
            with self._slots.on_device():
                self._slots.erase(Grouped(ids.to(self._slots.device), None))

    def move_out_unset(self, ids: Int64[Tensor, "n"]) -> None:
        """Removes the ids that have a slot but whose row was never written."""
        slots = self._slots
        ids = ids.to(slots.device)
        with slots.on_device():
            found = find.find(slots.arrays, ids)
        at = found.clamp(min=0)
        unset = (found >= 0) & (slots.arrays.index[at // LANES, TIMES, at % LANES] == NEWBORN)
        self.move_out(torch.unique(ids[unset]))


def _order(grouped: Grouped) -> Int64[Tensor, "n"]:
    if grouped.order is None:
        return torch.arange(len(grouped.ids), device=grouped.ids.device)
    return grouped.order


def _without(grouped: Grouped, which: Bool[Tensor, "n"]) -> Grouped:
    """Returns the groups with those in `which` turned into padding.

    The order of padding points past the input.
    """
    return Grouped(grouped.ids, torch.where(which, len(grouped.ids), _order(grouped)))
