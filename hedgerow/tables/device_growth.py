"""How a table on a device gets more slots."""

from __future__ import annotations

from typing import Any

import torch

from ..core import checks
from ..core.errors import ConfigError
from ..kernels.layout import LANES, Arrays
from ..kernels.rehash import rehash
from .device_reads import MAX_IDS, DeviceReads

FILL = 0.8  # of the slots: up to there every id finds room
_ROOMY = 0.6  # after growth at most so much is taken, so that the next count is far away


class DeviceGrowth(DeviceReads):
    """The part of `DeviceTable` that owns its slots."""

    full: Any
    epoch: object
    _slot_key: int

    @property
    def _scored(self) -> bool:
        """Whether rows have a score beside their time: stamps with marks leave no room for one."""
        return self._order is not None and (self._order.by_use or self.full == "evict")

    def reserve(self, rows: int) -> None:
        """Makes room for so many rows. Those that are there move with states, times and uses.

        Needs memory for the old slots and the new ones together, and ends CUDA graphs that were
        captured with this table.
        """
        needed = _buckets(checks.count("rows", rows) / FILL)
        if needed > self.arrays.buckets:
            # Rows may stand closer than FILL, and would not all find room in few more slots.
            self._move_to(max(needed, _buckets(self.size() / FILL)))

    def _make_room(self, n: int) -> None:
        """Slots for a call that may bring `n` new ids, if the table grows by itself.

        Rows are counted, which waits for the device, only when the ids written since the last
        count could fill the table; and then it grows, or it was far from full.
        """
        self._since += n
        if self.full != "grow" or self.is_capturing():
            return
        if self.size_at_most() <= FILL * self.capacity_rows:
            return
        self.size()
        self._since = n
        if self._known + n > _ROOMY * self.capacity_rows:
            wanted = max(2 * self.arrays.buckets, _buckets((self._known + n) / _ROOMY))
            self._move_to(wanted)

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured, in which nothing may be allocated anew."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _new_arrays(self, buckets: int) -> Arrays:
        if buckets * LANES >= MAX_IDS:
            raise ConfigError(
                f"table {self.config.name!r} of {buckets * LANES} slots; at most {MAX_IDS - LANES}."
            )
        return Arrays.make(
            *(buckets, self.config.dim, self.device, self.layout.state_floats),
            scored=self._scored,
            marked=self._order is not None,
            slot_key=self._slot_key,
        )

    def _move_to(self, buckets: int) -> None:
        """All rows in so many buckets, or in more if one of them finds no room."""
        rows = int(self.arrays.taken().sum())
        larger = self._new_arrays(buckets)
        with self.on_device():
            moved = rehash(self.arrays, larger)
        if int((moved >= 0).sum()) < rows:
            del larger, moved
            self._move_to(2 * buckets)
            return
        self.arrays, self.epoch = larger, object()


def _buckets(slots: float) -> int:
    return -(-int(slots + 1) // LANES)
