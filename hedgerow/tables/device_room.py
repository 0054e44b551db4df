"""What a full table on a device does for new ids: rows leave by their scores, if it says so."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..core.errors import TableFullError
from ..core.shapes import Bool, Float32, Int64
from ..kernels.assign import assign
from ..kernels.evict import insert_and_evict
from ..kernels.first_values import first_values
from ..kernels.layout import EVICTED, INSERTED, MARK, RECLAIMED, Grouped, Part, group
from .device_watch import DeviceWatch

Full = Literal["refuse", "raise", "evict", "grow"]
"""What happens to ids that find no room: they are refused and counted; or an error tells of them
too; or the row with the smallest score in reach leaves; or the table gets more slots."""

_CALLS = 2**15 - 1  # numbers of calls that scores tell apart


class DeviceRoom(DeviceWatch):
    """The part of `DeviceTable` that lets rows of a full table go. It never waits."""

    full: Full
    parts: tuple[Part, ...]
    _starts: Float32[Tensor, "states"]
    _totals: Int64[Tensor, "5"]
    _calls: int
    _kept_out: Int64[Tensor, ""] | None = None  # ids of this call that an admission rule refused

    def _keep_out(self, refused: Bool[Tensor, "n"], done: Int64[Tensor, "3"]) -> None:
        """Counts what an admission rule refused: ids for which there may well be room."""
        self._kept_out = refused.sum()
        done[1] += self._kept_out

    def _raise_if_full(self, done: Int64[Tensor, "3"]) -> None:
        """Tells of ids without room; waits for the device."""
        without = int(done[1] if self._kept_out is None else done[1] - self._kept_out)
        if without:
            raise TableFullError(
                f"{without} ids of a call found no room in table {self.config.name!r}: "
                f"{self.size()} of its {self.capacity_rows} slots are taken, and from about 0.85 "
                f"some ids meet full buckets. All other rows were written. Give the table more "
                f"capacity_rows, or make it with full='grow' or 'evict'."
            )

    def _give_way(
        self, grouped: Grouped, wanted: Bool[Tensor, "n"], now: int, done: Int64[Tensor, "3"]
    ) -> None:
        """Rows for the `wanted` ids, one of each group, before anything is written to them.

        Those that are there are scored anew, so that they stay; new ones start as they would be
        born. A row is worth its time, or how often it was used under `Lfu`.
        """
        if self.full != "evict" or not len(grouped.ids):
            return
        self.epoch = object()
        self._calls = self._calls % _CALLS + 1
        order = wanted.logical_not().argsort(stable=True)
        ids, asked = grouped.ids[order], wanted.sum().view(1)
        order = self._order
        by_use = order is not None and order.by_use
        # A use is counted when the row is written.
        scores = torch.full_like(ids, 0 if by_use else now if order is None else now & MARK)
        out = insert_and_evict(
            *(self.arrays, ids, scores),
            call=self._calls,
            now=now,
            mode="use" if by_use else "assign",
            top=0 if order is None else order.top,
            used=asked,
        )
        left = out.codes == EVICTED
        new = left | (out.codes == INSERTED) | (out.codes == RECLAIMED)
        rows = [first_values(ids, part.dim, part.first, part.start) for part in self.parts]
        states = self._starts.expand(len(ids), -1).contiguous()
        nothing = torch.zeros_like(done)  # the ids that are not new look as if they were dropped
        assign(
            *(self.arrays, group(ids), torch.cat(rows, dim=1), new, self._starts, nothing, now),
            states=states,
        )
        done[0] += new.sum()
        self._totals[4] += left.sum()
        self._mark(out.victims, left)
