"""Which rows are resident in a fast tier in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.shapes import Int64
from ..tables.config import Segment, TableConfig
from ..tables.host import HostTable
from ..tables.initializers import Zeros
from ..tables.optimizers import Sgd

if TYPE_CHECKING:
    from .hybrid import UseCounts

Ids = np.ndarray[Any, np.dtype[np.int64]]
_HIGH = 1 << 20  # a float32 holds whole numbers up to 2**24: a place is written in two


class ResidencyMap:
    """An id map of fixed size in host memory; single-owner, but `find` may run beside itself.

    Of the id at a place it knows whether its row was changed since it came, how many hold it, when
    it was last used, and a number that no other stay at this place has. `DeviceResidencyMap` knows
    the same of rows on a device.

    >>> places = ResidencyMap(2)
    >>> places.take(np.array([7, -1])).tolist(), len(places)
    ([0, 1], 2)
    >>> places.find(np.array([-1, 5])).tolist()
    [1, -1]
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        segment = Segment(2, Zeros(), Sgd())
        # A table of our own is the map: any id, no collisions, and it works in C++.
        self._map = HostTable(TableConfig("places", (segment,), initial_capacity=rows))
        self._ids: Ids = np.zeros(rows, np.int64)
        self._taken = np.zeros(rows, np.bool_)
        self._dirty = np.zeros(rows, np.bool_)
        self._pins = np.zeros(rows, np.int32)
        self._used = np.zeros(rows, np.int64)
        self._born = np.zeros(rows, np.int64)
        self._free = np.arange(rows)[::-1].copy()  # a stack: the last is given next
        self._frees = rows
        self._stays = 0

    def __len__(self) -> int:
        return self.rows - self._frees

    @property
    def free(self) -> int:
        """Places that nobody has."""
        return self._frees

    # ---- who is here

    def find(self, ids: Ids) -> Ids:
        """The place of each id, -1 where it has none."""
        rows = self._map.lookup(torch.from_numpy(np.ascontiguousarray(ids))).rows_of().numpy()
        words = rows.astype(np.int64)
        return words[:, 0] * _HIGH + words[:, 1] - 1

    def at(self) -> Ids:
        """All taken places, in order."""
        return self._taken.nonzero()[0]

    def ids_at(self, at: Ids) -> Ids:
        """The ids at taken places."""
        return self._ids[at]

    def are_taken(self, at: Ids) -> np.ndarray:
        """Which of these places somebody has."""
        return self._taken[at]

    def take(self, ids: Ids) -> Ids:
        """Places for ids that differ and have none; there must be as many free."""
        assert len(ids) <= self._frees
        n = len(ids)
        before, taken = self._frees, torch.from_numpy(ids.copy())
        at = self._free[before - n : before][::-1].copy()
        words = np.stack(divmod(at + 1, _HIGH), axis=1).astype(np.float32)
        self._stays += 1
        self._ids[at], self._born[at] = ids, self._stays
        self._dirty[at], self._pins[at], self._used[at] = False, 0, 0
        try:
            self._map.assign(taken, torch.from_numpy(words))
            self._taken[at], self._frees = True, before - n
        except BaseException:  # no memory, or the user stops the program: nobody has come
            self._map.erase(taken)
            self._taken[at], self._frees = False, before
            raise
        return at

    def give(self, at: Ids) -> None:
        """The ids at these places leave."""
        if not len(at):
            return
        try:
            self._map.erase(torch.from_numpy(self._ids[at]))
        except BaseException:  # it broke off: those that are not found have left
            self._set_free(at[self.find(self._ids[at]) < 0])
            raise
        self._set_free(at)

    def _set_free(self, at: Ids) -> None:
        self._taken[at], self._dirty[at], self._pins[at] = False, False, 0
        self._free[self._frees : self._frees + len(at)] = at
        self._frees += len(at)

    def clear(self) -> None:
        """All ids leave."""
        self.give(self.at())

    # ---- what is known of them

    def use(self, at: Ids, now: int) -> None:
        """These were used at a time, not before that of other uses."""
        self._used[at] = now

    def set_dirty(self, at: Ids, dirty: bool) -> None:
        """Their rows are changed since they came, or are not."""
        self._dirty[at] = dirty

    def whose(self, at: Ids) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "m"]]:
        """The ids at places, and those of them with changed rows."""
        ids = self.ids_at(at)
        return torch.from_numpy(ids), torch.from_numpy(ids[self._dirty[at]])

    def may_have_come(self, most: int) -> None:
        """Of so many rows it is not known which have come; those that have a place have."""

    def stayed(self, at: Ids, now: int) -> None:
        """Something broke off; rows without a place here are nobody's."""

    def take_moved(self) -> tuple[int, int]:
        """Rows that came, and those that left, that nobody has counted yet."""
        return 0, 0

    def dirty(self) -> Ids:
        """All places whose rows are changed, in order."""
        return (self._dirty & self._taken).nonzero()[0]

    def hold(self, at: Ids) -> Ids:
        """They stay until they are let go; the number of the stay of each."""
        self._pins[at] += 1
        return self._born[at]

    def let_go(self, at: Ids, born: Ids) -> None:
        """Ends one `hold` of these; not of ids that left in between."""
        same = (self._born[at] == born) & self._taken[at]
        self._pins[at[same]] -= 1

    def not_held(self, stay: Ids) -> int:
        """How many of the places are neither held nor among those that `stay`."""
        held = self._pins > 0
        held[stay] = True
        return self.rows - int(held.sum())

    def coldest(self, n: int, stay: Ids, before: int) -> Ids:
        """The n longest unused that are neither held nor among those that `stay`.

        Fewer, if fewer were last used `before` this time.
        """
        may_leave = self._taken & (self._pins == 0) & (self._used < before)
        may_leave[stay] = False
        at = may_leave.nonzero()[0]
        return at[np.argpartition(self._used[at], n - 1)[:n]] if n < len(at) else at

    def least_used(self, uses: UseCounts, n: int) -> Ids:
        """The n places whose ids are used least, in any order; fewer if fewer are taken."""
        at = self.at()
        found = uses.of(self._ids[at]).topk(min(n, len(at)), largest=False, sorted=False)
        return at[found.indices.numpy()]

    def nbytes(self) -> int:
        """Host memory of the map and of what is known of each place."""
        known = (self._ids, self._taken, self._dirty, self._pins, self._used, self._born)
        return self._map.memory().total_bytes + sum(x.nbytes for x in (*known, self._free))
