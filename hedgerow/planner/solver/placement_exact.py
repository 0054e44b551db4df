"""Exact placement of few tables on few ranks: every way that may still win, in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .placement_problem import Loads, PlacementTable, Ranks, ns

Spot = tuple[int, int | None]  # the option's place, and its rank
Key = tuple[int, int, int, int]  # busiest rank, sum, HBM, host memory: less is better


class ExactPlacement:
    """Depth first in the order of tables, options and ranks, so that the first of equals stays."""

    def __init__(self, tables: Sequence[PlacementTable], ranks: Ranks, most_steps: int) -> None:
        self._tables, self._ranks, self._steps = tables, ranks, most_steps
        self._least = _least_after(tables, ranks)
        self.best: tuple[Key, tuple[Spot, ...]] | None = None
        self.complete = True

    def search(self) -> None:
        """Fills `best`; `complete` is False where there were too many ways."""
        self._down(0, Loads.none(self._ranks), ())

    def _down(self, place: int, loads: Loads, spots: tuple[Spot, ...]) -> None:
        self._steps -= 1
        if self._steps < 0:
            self.complete = False
            return
        if place == len(self._tables):
            key = _key(loads, 0, 0)
            if self.best is None or key < self.best[0]:
                self.best = (key, spots)
            return
        for option_place, option in enumerate(self._tables[place].options):
            spread = (None,) if option.everywhere else range(self._ranks.count)
            for rank in spread:
                after = loads.plus(self._ranks, option, rank)
                if after.fits(self._ranks) and self._may_win(after, place + 1):
                    self._down(place + 1, after, (*spots, (option_place, rank)))

    def _may_win(self, loads: Loads, place: int) -> bool:
        if self.best is None:
            return True
        total, single = self._least[place]
        return _key(loads, total, single) < self.best[0]


def _key(loads: Loads, total: int, single: int) -> Key:
    """What a placement comes to at least, with so much still to be placed."""
    everything = int(loads.cost.sum()) + total
    even = -(-everything // len(loads.cost))
    busiest = max(int(loads.cost.max()), even, int(loads.cost.min()) + single)
    return busiest, everything, int(loads.hbm.sum()), int(loads.ddr.sum())


def _least_after(tables: Sequence[PlacementTable], ranks: Ranks) -> list[tuple[int, int]]:
    """From each table on: the least time of all ranks together, and the largest least of one."""
    total, single, found = 0, 0, [(0, 0)]
    for table in reversed(tables):
        options = table.options
        total += min(ns(o) * (ranks.count if o.everywhere else 1) for o in options)
        single = max(single, min(ns(o) for o in options))
        found.append((total, single))
    return found[::-1]


def placed(tables: Sequence[PlacementTable], ranks: Ranks, spots: Sequence[Spot]) -> Loads:
    """What lies where."""
    loads = Loads.none(ranks)
    for table, (place, rank) in zip(tables, spots, strict=True):
        loads = loads.plus(ranks, table.options[place], rank)
    return loads


def ways(tables: Sequence[PlacementTable], ranks: Ranks) -> int:
    """How many placements there are, whether they fit or not."""
    counts = [sum(1 if o.everywhere else ranks.count for o in t.options) for t in tables]
    return math.prod(counts)
