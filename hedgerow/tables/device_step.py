"""The optimizer step of a table on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.shapes import Bool, Float32, Int64
from ..kernels import apply, apply_each, find_or_insert
from ..kernels import step as steps
from ..kernels.layout import Grouped, group
from ..kernels.sum_gradients import sum_gradients
from .device_admission import Sightings
from .device_slots import DeviceSlots, RowTimes
from .device_writes import DeviceWrites, Write
from .store import Applied, Lookup, TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """The checked arguments of one call of `apply_gradients`."""

    keys: TableKeys
    found: Lookup | None  # where its rows were found
    grads: Float32[Tensor, "n dim"]
    rates: list[float]
    number: int  # of the step; 0 where none was given and none is needed
    at_step: int  # the number, or NO_STEP where none was given
    counts: Int64[Tensor, "n"] | None


class DeviceStep:
    """Applies gradients; never waits for the device, except where `DeviceWrites.finish` does.

    A plain step needs no sort by id. A table that admits ids, whose changes are followed or whose
    rows leave for new ids must know which ids a call has, and sorts them.
    """

    def __init__(self, slots: DeviceSlots, times: RowTimes, writes: DeviceWrites) -> None:
        self._slots, self._times, self._writes = slots, times, writes
        self._sorts = not writes.admits_all or slots.full == "evict"

    def apply(self, update: Update, ts: int) -> Applied:
        """One step per distinct id, with its summed gradient."""
        # A half-life in uses counts the ids, not their `counts`: to add those up would wait.
        write = self._writes.start(ts, len(update.keys.ids))
        found = update.found  # rows may have moved to make room
        slots = found.slots if found is not None and found.epoch is self._slots.epoch else None
        with self._slots.on_device():
            if self._sorts or self._writes.is_watched(learned=True):
                self._sorted(update, slots, write)
            else:
                self._plain(update, slots, write)
        return self._writes.finish(write)

    def _plain(self, update: Update, slots: Tensor | None, write: Write) -> None:
        keys, table = update.keys, self._slots
        where: dict[str, Any] = {"slots": slots, "used": keys.used, "at_step": update.at_step}
        if keys.distinct:
            apply.apply(
                *(table.arrays, Grouped(keys.ids, None), update.grads, write.done, table.parts),
                *(update.rates, write.now),
                **where,
                stamp=self._times.is_timed,
            )
        else:
            steps.step(
                *(table.arrays, keys.ids, update.grads, write.done, table.parts),
                *(update.rates, write.now),
                **where,
            )

    def _sorted(self, update: Update, slots: Tensor | None, write: Write) -> None:
        table, used, counts = self._slots, update.keys.used, update.counts
        grouped = group(update.keys.ids)
        grouped = self._writes.admitted(grouped, used, write, update.number, counts)
        if table.full == "evict":
            slots = None  # they may be other ids' by now
            sums, number = sum_gradients(grouped, update.grads, used)
            wanted = (number > 0) & sums.isfinite().all(dim=1)  # no row leaves for a dropped one
            self._writes.give_way(grouped, wanted, write)
        placed = self._writes.room_for_slots(grouped, learned=True)
        apply.apply(
            *(table.arrays, grouped, update.grads, write.done, table.parts),
            *(update.rates, write.now),
            slots=slots,
            used=used,
            placed=placed,
            stamp=self._times.is_timed,
            at_step=update.at_step,
        )
        self._writes.note(grouped, placed, learned=True, use=write.now, used=used, counts=counts)

    def apply_each(self, update: Update, ts: int) -> Applied:
        """One step per occurrence of an id, in input order.

        An id gets a row if one of its occurrences is admitted and finite.
        """
        write = self._writes.start(ts, len(update.keys.ids))
        with self._slots.on_device():
            self._each(update, write)
        return self._writes.finish(write)

    def _each(self, update: Update, write: Write) -> None:
        table, writes, done, used = self._slots, self._writes, write.done, update.keys.used
        grouped = group(update.keys.ids)
        seen = Sightings.of(grouped, used, update.counts)
        refused = writes.refused(grouped, seen, write, update.number, each=True)
        taken = seen.live if refused is None else seen.live & ~refused
        usable: Bool[Tensor, "n"] = update.grads.isfinite().all(dim=1)[grouped.order]
        done[2] += (taken & ~usable).sum()
        taken = taken & usable
        wanted = seen.total(taken.long()) > 0  # where a group begins
        writes.give_way(grouped, wanted, write)
        slots, born = find_or_insert.find_or_insert(table.arrays, grouped.ids, wanted=wanted)
        done[0] += born.sum()
        done[1] += (wanted & (slots < 0)).sum()
        apply_each.apply_each(
            *(table.arrays, grouped, taken, update.grads, slots, born, table.parts),
            *(update.rates, write.now, update.at_step),
        )
        writes.note(grouped, slots, learned=True, use=write.now, used=used, counts=update.counts)
