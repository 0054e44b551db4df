"""How rows of a table on a device go to another store of the same table, and come back."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Bool, Int64
from ..kernels import assign, erase, find, lookup
from ..kernels.layout import LANES, NEWBORN, TIMES, Grouped, group
from .device_evict import DeviceEvictions
from .moving import MovingRows


class DeviceMoves(DeviceEvictions):
    """The part of `DeviceTable` that tiers use. Of a move nobody is told, and nothing is counted.

    It waits for the device.
    """

    def read_out(self, ids: Int64[Tensor, "n"]) -> MovingRows:
        """Whole rows, on the device; those of absent ids are zeros."""
        ids = ids.to(self.device)
        with self.on_device():
            slots = find.find(self.arrays, ids)
            rows = lookup.gather(self.arrays, slots)
        found, at, dim = slots >= 0, slots.clamp(min=0), self.config.dim
        raw = self.arrays.values[at, dim : dim + self.layout.state_floats]
        raw = torch.where(found[:, None], raw, 0.0)
        return MovingRows(
            ids, found, rows, raw, torch.where(found, self._stamps_at(self.arrays, at), 0)
        )

    def move_in(self, moving: MovingRows) -> Bool[Tensor, "n"]:
        """Takes rows from anywhere; which found room."""
        there, n = moving.to(self.device), len(moving)
        if not n:
            return there.found
        self.begin_at(0, n)
        uncounted = self._nothing_done()
        self.is_timed, self.epoch = True, object()
        with self.on_device():
            assign.assign(
                *(self.arrays, group(there.ids), there.rows, torch.ones_like(there.found)),
                *(self._starts, uncounted, 0, None, there.states, there.ts),
            )
            slots = find.find(self.arrays, there.ids)
            if self._scored:
                self._score(slots)
            return slots >= 0

    def move_out(self, ids: Int64[Tensor, "n"]) -> None:
        """Lets rows go; the ids differ."""
        self.before_change()
        self.epoch = object()
        if len(ids):
            with self.on_device():
                erase.erase(self.arrays, Grouped(ids.to(self.device), None))

    def move_out_unset(self, ids: Int64[Tensor, "n"]) -> None:
        """Lets those of the ids go that were given a place and never a row."""
        ids = ids.to(self.device)
        with self.on_device():
            slots = find.find(self.arrays, ids)
        at = slots.clamp(min=0)
        unset = (slots >= 0) & (self.arrays.index[at // LANES, TIMES, at % LANES] == NEWBORN)
        self.move_out(torch.unique(ids[unset]))
