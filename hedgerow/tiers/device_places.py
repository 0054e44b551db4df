"""Which ids a fast tier on a device holds: what the index of its table says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.shapes import Int32
from ..kernels import find
from ..tables.device import DeviceTable
from .places import Ids
from .uses import Uses

if TYPE_CHECKING:
    from .two_tiers import TwoTiers


class DevicePlaces:
    """What `Places` is for rows in host memory; a place is the slot of the row in its table.

    The table's own index is the map, so an id has a place from the moment its row is there until
    the row is gone: `take` and `give` only tell of it. What is known of the rows of a cache is in
    `DeviceCachePlaces`.
    """

    def __init__(self, table: DeviceTable, rows: int) -> None:
        self.rows = rows
        self._table = table
        self._ids, self._counted = 0, True  # how many, at most that if they are not counted

    def __len__(self) -> int:
        if not self._counted:
            self.recount()
        return self._ids

    def recount(self) -> None:
        """Asks the table how many ids it has."""
        self._ids, self._counted = self._table.size(), True

    @property
    def free(self) -> int:
        """How many ids more may come."""
        return max(0, self.rows - len(self))

    def find(self, ids: Ids) -> Ids:
        """The place of each id, -1 where it has none."""
        with self._table.on_device():
            slots = find.find(self._table.arrays, self._tensor(ids))
        return slots.cpu().numpy()

    def at(self) -> Ids:
        """All taken places, in order."""
        return self._table.arrays.taken().nonzero()[:, 0].cpu().numpy()

    def ids_at(self, at: Ids) -> Ids:
        """The ids at taken places."""
        return self._table.arrays.ids(self._tensor(at)).cpu().numpy()

    def are_taken(self, at: Ids) -> np.ndarray:
        """Which of these places somebody has."""
        return self._table.arrays.taken()[self._tensor(at)].cpu().numpy()

    def take(self, ids: Ids) -> Ids:
        """The places of ids whose rows have just come."""
        at = self.find(ids)
        self.came(len(ids), self._tensor(at).to(torch.int32))
        return at

    def came(self, most: int, slots: Int32[Tensor, "n"] | None = None) -> None:
        """So many rows at most have come; `slots` say where to, those below 0 nowhere."""
        self._ids, self._counted = self._ids + most, False

    def give(self, at: Ids | Tensor) -> None:
        """The ids at these places leave."""
        self._counted = False

    def clear(self) -> None:
        """All ids leave."""
        self._counted = False

    def least_used(self, uses: Uses, n: int) -> Ids:
        """The n places whose ids are used least, in any order; fewer if fewer are taken."""
        at = self._table.arrays.taken().nonzero()[:, 0]
        theirs = uses.of(self._table.arrays.ids(at))
        found = theirs.topk(min(n, len(at)), largest=False, sorted=False)
        return at[found.indices].cpu().numpy()

    def nbytes(self) -> int:
        """Memory beside the table's own."""
        return 0

    def _tensor(self, at: Ids | Tensor) -> Tensor:
        if isinstance(at, Tensor):
            return at
        return torch.from_numpy(np.ascontiguousarray(at)).to(self._table.device)


def fast_of(table: TwoTiers) -> DeviceTable:
    """The fast store of a table, on a device."""
    assert isinstance(table.fast, DeviceTable)
    return table.fast
