"""Finds partners whose two sizes both lie in a window: cells of one size, sorted by the other."""

from __future__ import annotations

import numpy as np

from .choice_problem import Bools, Ints

ENDLESS = 2**60
_MOST_CELLS = 2**20


class PairIndex:
    """Sizes of many choices. Windows are at most `widest` wide, so each meets two cells.

    >>> spare = np.array([3]), np.array([9])
    >>> index = PairIndex(np.array([1, 5, 9]), np.array([4, 4, 4]), spare)
    >>> first, last, order = index.windows(np.array([6]), np.array([5]), spare)
    >>> [order[a:b].tolist() for a, b in zip(first, last)]
    [[0], [1]]
    """

    def __init__(self, hbm: Ints, ddr: Ints, widest: tuple[Ints, Ints]) -> None:
        self._hbm_from, self._ddr_from = int(hbm.min()), int(ddr.min())
        hbm_range = int(hbm.max()) - self._hbm_from + 1
        self._ddr_range = int(ddr.max()) - self._ddr_from + 1
        # The two make one number: neither may be so fine that the number overflows.
        most = max(1, min(_MOST_CELLS, 2**61 // self._ddr_range))
        self._cell = max(1, int(widest[0][0]) + 1, -(-hbm_range // most))
        self._cells = -(-hbm_range // self._cell)
        keys = self._keys((hbm - self._hbm_from) // self._cell, ddr - self._ddr_from)
        self._order = np.argsort(keys, kind="stable")
        self._keys_sorted = keys[self._order]

    def _keys(self, cell: Ints, ddr: Ints) -> Ints:
        return cell * self._ddr_range + ddr

    def windows(self, hbm: Ints, ddr: Ints, spare: tuple[Ints, Ints]) -> tuple[Ints, Ints, Ints]:
        """For partners of at most these sizes and at least so much less: where they lie in order.

        Twice as many windows as sizes: those in the lower cells, then those in the upper ones.
        Partners of neighbouring sizes are among them; the caller checks both budgets.
        """
        low = (hbm - spare[0] - self._hbm_from) // self._cell
        high = (hbm - self._hbm_from) // self._cell
        least = np.maximum(0, ddr - spare[1] - self._ddr_from)
        most = np.minimum(self._ddr_range - 1, ddr - self._ddr_from)
        low, high = np.maximum(low, 0), np.minimum(high, self._cells - 1)
        bounds = [
            self._within(low, least, most, low <= high),
            self._within(high, least, most, low < high),
        ]
        first, last = (np.concatenate(part) for part in zip(*bounds, strict=True))
        return first, last, self._order

    def _within(self, cell: Ints, least: Ints, most: Ints, there: Bools) -> tuple[Ints, Ints]:
        good = there & (least <= most)
        cell, least, most = (np.where(good, part, 0) for part in (cell, least, most))
        first = np.searchsorted(self._keys_sorted, self._keys(cell, least), side="left")
        last = np.searchsorted(self._keys_sorted, self._keys(cell, most), side="right")
        return first, np.where(good, last, first)
