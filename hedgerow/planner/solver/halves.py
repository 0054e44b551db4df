"""Exact search of a small core: cheap choices of either half, joined where both budgets hold."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from .choice_problem import Bools, ChoiceProblem, Floats, Ints
from .core import Answer, Core
from .pair_index import ENDLESS, PairIndex
from .relax import Relaxation

_MIX = np.array([0x2545F4914F6CDD1D, 0x1B873593CC9E2D51, 0x5851F42D4C957F2D], np.int64)  # odd
_PAIRS_AT_ONCE, _PAIRS = 2**20, 2**23  # some tens of MB, and some seconds


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """Choices of some tables: totals, regret, and how each came about, table by table."""

    tables: Ints
    cost: Ints
    hbm: Ints
    ddr: Ints
    regret: Floats
    steps: list[tuple[Ints, Ints]]  # of each table: the choice before, and the column added

    def columns(self, choice: int) -> list[int]:
        """The column of each table in one choice."""
        found = []
        for before, column in reversed(self.steps):
            found.append(int(column[choice]))
            choice = int(before[choice])
        return found[::-1]


def cheapest(
    core: Core, relaxation: Relaxation, limit: int, room: int
) -> tuple[Answer | None, bool]:
    """The best of all choices that cost at most `limit`, or None if there is none; and whether
    the search was complete: halves of more than `room` choices are given up.

    What a choice costs above the bound is its regret and the worth of the memory it leaves free,
    so only options, sums and pairs within that margin count.
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
    """Tables with a choice in two halves of like size, each in table order."""
    open_tables = np.flatnonzero(kept.sum(axis=1) > 1)
    second = np.where(kept[open_tables], regret[open_tables], np.inf)
    second = np.sort(second, axis=1)[:, 1] if second.size else second.ravel()
    by_regret = open_tables[np.argsort(second, kind="stable")]
    return np.sort(by_regret[0::2]), np.sort(by_regret[1::2])


def _half(
    problem: ChoiceProblem, regret: Floats, kept: Bools, tables: Ints, margin: float, room: int
) -> Half | None:
    """All choices whose regrets sum to at most the margin; of equal ones the first in order."""
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
    """Places of the first of each set of equal choices, rising: the order is that of options.

    None if no two are equal, which one number for each mostly tells.
    """
    mixed = np.sort(cost * _MIX[0] + hbm * _MIX[1] + ddr * _MIX[2])  # wraps around, as it should
    if not (mixed[1:] == mixed[:-1]).any():
        return None
    order = np.lexsort((ddr, hbm, cost))  # stable: equals stay in order
    new = np.ones(len(order), np.bool_)
    new[1:] = np.diff(cost[order]) != 0
    for part in (hbm, ddr):
        new[1:] |= np.diff(part[order]) != 0
    return np.sort(order[new])


def _joined(task: _Task, left: Half, right: Half) -> tuple[Answer | None, bool]:
    """The best pair; a pair's memory is full up to what the margin allows to leave free."""
    index = PairIndex(right.hbm, right.ddr, task.spare(np.zeros(1)))
    first, last, order = index.windows(
        task.hbm_limit - left.hbm, task.ddr_limit - left.ddr, task.spare(left.regret)
    )
    counts = last - first
    if counts.sum() > _PAIRS:
        return None, False
    lefts = np.tile(np.arange(len(left.cost)), 2)
    best: Answer | None = None
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
    """What is searched: the core with its options within the margin, and the cost not to exceed."""

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
        """Bytes of each memory that a choice with such regret may leave free."""
        left = np.maximum(0, self.margin - regret)
        hbm, ddr = (_bytes(left, price) for price in self._prices)
        return hbm, ddr

    def better(
        self, left: Half, right: Half, lefts: Ints, rights: Ints, best: Answer | None
    ) -> Answer | None:
        """The best of these pairs and of what was best so far."""
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
    """How much memory so much buys, rounded up; endless where it is free."""
    if price <= 0:
        return np.full(len(worth), ENDLESS)
    return np.minimum(worth / price + 1, float(ENDLESS)).astype(np.int64)
