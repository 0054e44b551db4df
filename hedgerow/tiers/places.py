"""Which ids a fast tier holds, each at a place of its own, and what is known of them there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..tables.config import Segment, TableConfig
from ..tables.host import HostTable
from ..tables.initializers import Zeros
from ..tables.optimizers import Sgd

Ids = np.ndarray[Any, np.dtype[np.int64]]
_HIGH = 1 << 20  # a float32 holds whole numbers up to 2**24: a place is written in two


class Places:
    """An id map of fixed size in host memory; single-owner, but `find` may run beside itself.

    `dirty`, `pins`, `used` and `born` tell of the id at a place: changed since it came, held by so
    many, when it was last used, and a number that no other stay at this place has.

    >>> places = Places(2)
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
        self.ids: Ids = np.zeros(rows, np.int64)
        self.taken = np.zeros(rows, np.bool_)
        self.dirty = np.zeros(rows, np.bool_)
        self.pins = np.zeros(rows, np.int32)
        self.used = np.zeros(rows, np.int64)
        self.born = np.zeros(rows, np.int64)
        self._free = np.arange(rows)[::-1].copy()  # a stack: the last is given next
        self._frees = rows
        self._stays = 0

    def __len__(self) -> int:
        return self.rows - self._frees

    @property
    def free(self) -> int:
        """Places that nobody has."""
        return self._frees

    def find(self, ids: Ids) -> Ids:
        """The place of each id, -1 where it has none."""
        rows = self._map.lookup(torch.from_numpy(np.ascontiguousarray(ids))).rows_of().numpy()
        words = rows.astype(np.int64)
        return words[:, 0] * _HIGH + words[:, 1] - 1

    def take(self, ids: Ids) -> Ids:
        """Places for ids that differ and have none; there must be as many free."""
        assert len(ids) <= self._frees
        n = len(ids)
        before, taken = self._frees, torch.from_numpy(ids.copy())
        at = self._free[before - n : before][::-1].copy()
        words = np.stack(divmod(at + 1, _HIGH), axis=1).astype(np.float32)
        self._stays += 1
        self.ids[at], self.born[at] = ids, self._stays
        self.dirty[at], self.pins[at], self.used[at] = False, 0, 0
        try:
            self._map.assign(taken, torch.from_numpy(words))
            self.taken[at], self._frees = True, before - n
        except BaseException:  # no memory, or the user stops the program: nobody has come
            self._map.erase(taken)
            self.taken[at], self._frees = False, before
            raise
        return at

    def give(self, at: Ids) -> None:
        """The ids at these places leave."""
        if not len(at):
            return
        try:
            self._map.erase(torch.from_numpy(self.ids[at]))
        except BaseException:  # it broke off: those that are not found have left
            self._set_free(at[self.find(self.ids[at]) < 0])
            raise
        self._set_free(at)

    def _set_free(self, at: Ids) -> None:
        self.taken[at], self.dirty[at], self.pins[at] = False, False, 0
        self._free[self._frees : self._frees + len(at)] = at
        self._frees += len(at)

    def at(self) -> Ids:
        """All taken places, in order."""
        return self.taken.nonzero()[0]

    def clear(self) -> None:
        """All ids leave."""
        self.give(self.at())

    def nbytes(self) -> int:
        """Host memory of the map and of what is known of each place."""
        known = (self.ids, self.taken, self.dirty, self.pins, self.used, self.born, self._free)
        return self._map.memory().total_bytes + sum(array.nbytes for array in known)
