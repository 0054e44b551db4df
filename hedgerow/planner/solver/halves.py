"""Exact search of a small problem: enumerates two halves and joins pairs that fit both budgets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from .choice_problem import Bools, ChoiceProblem, ChosenOptions, Core, Floats, Ints
from .relax import Relaxation

ENDLESS = 2**60
_MOST_CELLS = 2**20


class PairIndex:
    """An index of choices by their two sizes.

    Each query window meets at most two cells of HBM sizes.

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
        # Both sizes are packed into one number, which limits the number of cells.
        most = max(1, min(_MOST_CELLS, 2**61 // self._ddr_range))
        self._cell = max(1, int(widest[0][0]) + 1, -(-hbm_range // most))
        self._cells = -(-hbm_range // self._cell)
        keys = self._keys((hbm - self._hbm_from) // self._cell, ddr - self._ddr_from)
        self._order = np.argsort(keys, kind="stable")
        self._keys_sorted = keys[self._order]

    def _keys(self, cell: Ints, ddr: Ints) -> Ints:
        return cell * self._ddr_range + ddr

    def windows(self, hbm: Ints, ddr: Ints, spare: tuple[Ints, Ints]) -> tuple[Ints, Ints, Ints]:
        """Returns where in `order` the partners lie whose sizes are at most `hbm` and `ddr`.

        Partners may be smaller by at most `spare`. There are two windows per query: the lower cells
        first, then the upper ones. The windows also contain slightly larger partners, so the caller
        must check both budgets.
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


_MIX = np.array([0x2545F4914F6CDD1D, 0x1B873593CC9E2D51, 0x5851F42D4C957F2D], np.int64)  # odd
_PAIRS_AT_ONCE, _PAIRS = 2**20, 2**23  # some tens of MB, and some seconds


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """The choices of half the tables: totals, regret, and how each choice was built."""

    tables: Ints
    cost: Ints
    hbm: Ints
    ddr: Ints
    regret: Floats
    steps: list[tuple[Ints, Ints]]  # per table: the previous choice, and the added column

    def columns(self, choice: int) -> list[int]:
        """Returns the column of each table in one choice."""
        found = []
        for before, column in reversed(self.steps):
            found.append(int(column[choice]))
            choice = int(before[choice])
        return found[::-1]


def cheapest(
    core: Core, relaxation: Relaxation, limit: int, room: int
) -> tuple[ChosenOptions | None, bool]:
    """Returns the best choice that costs at most `limit` or None, and whether all were searched.

    A half with more than `room` choices ends the search. A choice costs more than the bound by its
    regret and the worth of the memory it leaves free. So only options, sums and pairs within that
    margin are searched.
    """
    margin = relaxation.beyond(limit - core.cost)
    problem = core.problem
    kept = problem.there & (relaxation.regret <= margin)
    if not kept.any(axis=1).all():
        return None, True
    left, right = _split(kept, relaxation.regret)
    halves = []
    for tables in (left, right):
        half = _half(problem, relaxation.regret, kept, tables, margin, room)
        if half is None:
            return None, False
        halves.append(half)
    return _joined(_Task(core, relaxation, kept, limit, margin), *halves)


def _split(kept: Bools, regret: Floats) -> tuple[Ints, Ints]:
    """Returns the open tables as two halves with similar option counts, each in table order."""
    open_tables = np.flatnonzero(kept.sum(axis=1) > 1)
    second = np.where(kept[open_tables], regret[open_tables], np.inf)
    second = np.sort(second, axis=1)[:, 1] if second.size else second.ravel()
    by_regret = open_tables[np.argsort(second, kind="stable")]
    return np.sort(by_regret[0::2]), np.sort(by_regret[1::2])


def _half(
    problem: ChoiceProblem, regret: Floats, kept: Bools, tables: Ints, margin: float, room: int
) -> Half | None:
    """Returns all choices whose regrets sum to at most `margin`, or None if there are too many.

    Of equal choices only the first is kept.
    """
    zero = np.zeros(1, np.int64)
    cost, hbm, ddr, sums = zero, zero, zero, np.zeros(1)
    steps: list[tuple[Ints, Ints]] = []
    for table in tables:
        options = np.flatnonzero(kept[table])
        added = sums[:, None] + regret[table, options]
        before, option = np.nonzero(added <= margin)
        if len(before) > room:
            return None
        chosen = options[option]
        sums = added[before, option]
        cost = cost[before] + problem.cost[table, chosen]
        hbm = hbm[before] + problem.hbm[table, chosen]
        ddr = ddr[before] + problem.ddr[table, chosen]
        first = _first_of_equals(cost, hbm, ddr)
        if first is not None:
            cost, hbm, ddr, sums = cost[first], hbm[first], ddr[first], sums[first]
            before, chosen = before[first], chosen[first]
        steps.append((before, chosen))
    return Half(tables, cost, hbm, ddr, sums, steps)


def _first_of_equals(cost: Ints, hbm: Ints, ddr: Ints) -> Ints | None:
    """Returns the rising indices of the first of each group of equal choices, or None."""
    mixed = np.sort(cost * _MIX[0] + hbm * _MIX[1] + ddr * _MIX[2])  # overflow is intended
    if not (mixed[1:] == mixed[:-1]).any():
        return None
    order = np.lexsort((ddr, hbm, cost))  # a stable sort keeps equal choices in order
    new = np.ones(len(order), np.bool_)
    new[1:] = np.diff(cost[order]) != 0
    for part in (hbm, ddr):
        new[1:] |= np.diff(part[order]) != 0
    return np.sort(order[new])


def _joined(task: _Task, left: Half, right: Half) -> tuple[ChosenOptions | None, bool]:
    """Returns the best pair that fits, and whether the search was complete."""
    index = PairIndex(right.hbm, right.ddr, task.spare(np.zeros(1)))
    first, last, order = index.windows(
        task.hbm_limit - left.hbm, task.ddr_limit - left.ddr, task.spare(left.regret)
    )
    counts = last - first
    if counts.sum() > _PAIRS:
        return None, False
    lefts = np.tile(np.arange(len(left.cost)), 2)
    best: ChosenOptions | None = None
    for begin, end in _batches(counts):
        sizes = counts[begin:end]
        steps = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rights = order[np.repeat(first[begin:end], sizes) + steps]
        best = task.better(left, right, np.repeat(lefts[begin:end], sizes), rights, best)
    return best, True


def _batches(counts: Ints) -> list[tuple[int, int]]:
    ends = np.searchsorted(
        np.cumsum(counts), np.arange(_PAIRS_AT_ONCE, int(counts.sum()), _PAIRS_AT_ONCE)
    )
    marks = sorted({0, len(counts), *(int(end) + 1 for end in ends if end + 1 < len(counts))})
    return list(itertools.pairwise(marks))


class _Task:
    """One search: the core, its options within the margin, and the cost limit."""

    def __init__(
        self, core: Core, relaxation: Relaxation, kept: Bools, limit: int, margin: float
    ) -> None:
        problem = core.problem
        self.core, self.margin = core, margin
        self._prices = relaxation.hbm_price, relaxation.ddr_price
        self._first = kept.argmax(axis=1)
        one = kept.sum(axis=1) == 1
        parts = (problem.cost, problem.hbm, problem.ddr)
        cost, hbm, ddr = (int(part[one, self._first[one]].sum()) for part in parts)
        self._most = limit - core.cost - cost
        self.hbm_limit, self.ddr_limit = problem.hbm_limit - hbm, problem.ddr_limit - ddr
        self._settled_cost = core.cost + cost

    def spare(self, regret: Floats) -> tuple[Ints, Ints]:
        """Returns the bytes of each memory that a choice with this regret may leave free."""
        left = np.maximum(0, self.margin - regret)
        hbm, ddr = (_bytes(left, price) for price in self._prices)
        return hbm, ddr

    def better(
        self, left: Half, right: Half, lefts: Ints, rights: Ints, best: ChosenOptions | None
    ) -> ChosenOptions | None:
        """Returns the best of `best` and the given pairs."""
        cost = left.cost[lefts] + right.cost[rights]
        hbm = left.hbm[lefts] + right.hbm[rights]
        ddr = left.ddr[lefts] + right.ddr[rights]
        most = self._most if best is None else best.cost - self._settled_cost
        fits = (hbm <= self.hbm_limit) & (ddr <= self.ddr_limit) & (cost <= most)
        pairs = np.flatnonzero(fits)
        for part in (cost, hbm, ddr):
            if not len(pairs):
                return best
            pairs = pairs[part[pairs] == part[pairs].min()]
        for pair in pairs:
            choice = self._first.copy()
            choice[left.tables] = left.columns(int(lefts[pair]))
            choice[right.tables] = right.columns(int(rights[pair]))
            answer = self.core.answer(choice)
            best = answer if best is None else min(best, answer)
        return best


def _bytes(worth: Floats, price: float) -> Ints:
    """Returns how many bytes the worth buys, rounded up. Unlimited if memory is free."""
    if price <= 0:
        return np.full(len(worth), ENDLESS)
    return np.minimum(worth / price + 1, float(ENDLESS)).astype(np.int64)
