"""What others may follow of a table on a device: changing keys, all rows at one instant."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

import torch
from torch import Tensor

from ..core.errors import InputError, NameTakenError
from ..core.shapes import Bool, Int64
from ..core.use_weights import weights_times
from ..kernels.layout import MARK, TIMES, Grouped
from ..kernels.pins import touch
from .device_admission import Sightings
from .device_growth import DeviceGrowth
from .device_snapshot import DeviceSnapshot
from .device_touched import DeviceTouched
from .touched import DEFAULT_CAPACITY, Overflow, TouchedSettings

_BORN = 2**40  # what `apply` adds to the slots of new rows


class DeviceWatch(DeviceGrowth):
    """The watched part of `DeviceTable`."""

    def _start_watch(self) -> None:
        self._consumers: dict[str, DeviceTouched] = {}
        self._snapshots: list[ref[DeviceSnapshot]] = []  # that nobody has changed a row since

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> DeviceTouched:
        """The keys changed since `consumer` last took them; collected from the first call on.

        As `HostTable.touched`. Writes go on without waiting for the device; taking waits.
        """
        if not isinstance(consumer, str) or not consumer:
            raise InputError(f"consumer is {consumer!r}; it must be a non-empty str.")
        settings = TouchedSettings(capacity, all_changes, overflow)
        known = self._consumers.get(consumer)
        if known is None:
            known = DeviceTouched(consumer, settings, self.device, self._consumers.pop)
            self._consumers[consumer] = known
        if known.settings != settings:
            raise NameTakenError(
                f"consumer {consumer!r} of table {self.config.name!r} is open with "
                f"{known.settings}, not {settings}; close it first, or choose another name."
            )
        return known

    def consumer(self, name: str) -> DeviceTouched | None:
        """The consumer of touched keys that is open under a name, if one is."""
        return self._consumers.get(name)

    def snapshot(
        self, *, at_start: Callable[[], object] | None = None, paused: bool = False
    ) -> DeviceSnapshot:
        """All rows as they are when this returns, to be read while writers go on.

        Nobody writes meanwhile, since a device table has one thread; so `paused` changes nothing.
        """
        if at_start is not None:
            at_start()
        table, slots = self.arrays, self._slot_slices(None)
        parts = (self._entries(table, table.ids(part), part) for part in slots)
        size = sum(map(len, slots))
        opened = DeviceSnapshot(self.config.name, parts, size, self.max_ts())
        self._snapshots.append(ref(opened))
        return opened

    def _feed_bytes(self) -> int:
        return sum(consumer.nbytes for consumer in self._consumers.values())

    # ---- what writes tell

    def before_change(self) -> None:
        """Open snapshots keep what is about to change; once, since then they have all of it."""
        while self._snapshots:
            opened = self._snapshots.pop()()
            if opened is not None:
                opened.keep()

    def _wants(self, *, learned: bool) -> list[DeviceTouched]:
        return [c for c in self._consumers.values() if learned or c.settings.all_changes]

    def is_watched(self, *, learned: bool) -> bool:
        """Whether anybody wants to know which rows a write changed."""
        return self._scored or bool(self._consumers and self._wants(learned=learned))

    def _placed(self, grouped: Grouped, *, learned: bool) -> Int64[Tensor, "n"] | None:
        """Room for a kernel to say which rows it wrote, if anybody wants to know."""
        return torch.empty_like(grouped.ids) if self.is_watched(learned=learned) else None

    def _note(
        self,
        grouped: Grouped,
        placed: Int64[Tensor, "n"] | None,
        *,
        learned: bool = False,
        use: int | None = None,
        used: Int64[Tensor, "1"] | None = None,
        counts: Int64[Tensor, "n"] | None = None,
    ) -> None:
        """Rows were written where `placed` is not below 0, one for each id.

        `use` is the stamp of the call if its ids are uses of them, 0 if not; None: the rows have
        stamps of their own. `counts` are the occurrences that each id stands for.
        """
        if placed is None:
            return
        self._mark(grouped.ids, placed >= 0, learned=learned)
        if self._scored:
            slots = torch.where(placed >= 0, placed % _BORN, -1)
            if use is not None and self._order is not None and self._order.by_use:
                seen = Sightings.of(grouped, used, counts)
                weights = weights_times(use & MARK, seen.total(seen.occurrences))
                touch(self.arrays, slots, weights, "use")
            else:
                self._score(slots)

    def _score(self, slots: Int64[Tensor, "n"]) -> None:
        """Scores rows that were written; without a score a row could never leave."""
        marks = self.arrays.read(TIMES, slots.clamp(min=0)) & MARK
        touch(self.arrays, slots, marks, "assign")

    def _mark(
        self, ids: Int64[Tensor, "n"], touched: Bool[Tensor, "n"], *, learned: bool = False
    ) -> None:
        for consumer in self._wants(learned=learned) if len(ids) else ():
            consumer.mark(ids, touched)

    def mark_all(self) -> None:
        """Tells every consumer of touched keys that any row may have changed."""
        for consumer in self._wants(learned=False):
            consumer.mark_all()
