"""The choice of one option per table as arrays, and reductions that keep its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.errors import InputError
from ..problem.options import PlanError, TableOptions
from ..problem.topology import Budget

NS_PER_MS = 1e6
LARGEST = 2**62  # of a sum, so that no int64 overflows

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceProblem:
    """Tables by options. Rows shorter than the longest are filled up with options not `there`.

    `order` is an option's place in the table's own list, rising along a row: the last tie rule.
    """

    cost: Ints
    hbm: Ints
    ddr: Ints
    order: Ints
    there: Bools
    hbm_limit: int
    ddr_limit: int

    @property
    def tables(self) -> int:
        """How many tables."""
        return len(self.cost)

    def totals(self, choice: Ints) -> tuple[int, int, int]:
        """Cost, HBM and host bytes of one option a table, by columns."""
        rows = np.arange(self.tables)
        parts = (self.cost, self.hbm, self.ddr)
        cost, hbm, ddr = (int(part[rows, choice].sum()) for part in parts)
        return cost, hbm, ddr

    def fits(self, choice: Ints) -> bool:
        """Both budgets hold, to the byte."""
        _, hbm, ddr = self.totals(choice)
        return hbm <= self.hbm_limit and ddr <= self.ddr_limit

    def keep(self, kept: Bools) -> ChoiceProblem:
        """Only those options, moved to the left; every table must keep one."""
        width = int(kept.sum(axis=1).max(initial=1))
        columns = np.argsort(~kept, axis=1, kind="stable")[:, :width]
        parts = (self.cost, self.hbm, self.ddr, self.order)
        cost, hbm, ddr, order = (np.take_along_axis(part, columns, axis=1) for part in parts)
        there = np.take_along_axis(kept, columns, axis=1)
        return ChoiceProblem(cost, hbm, ddr, order, there, self.hbm_limit, self.ddr_limit)


def choice_problem(tables: Sequence[TableOptions], budget: Budget) -> ChoiceProblem:
    """The problem in whole nanoseconds and bytes.

    >>> from fractions import Fraction
    >>> from ..problem.option import Option
    >>> ways = (Option("HBM_ONLY@1.0", 8, 0, 0.5), Option("HOST_ONLY@0", 0, 8, 2.0))
    >>> item = TableOptions("item", ways)
    >>> choice_problem([item], Budget(10, Fraction(5, 2))).cost.tolist()
    [[500000, 2000000]]
    """
    for table in tables:
        if not table.options:
            raise PlanError(
                f"Table {table.name!r} has no options; allow at least one mode and factor.",
                kind="no_options",
                never_fit=[table.name],
            )
        _check(table)
    width = max((len(table.options) for table in tables), default=1)
    shape = (len(tables), width)
    cost, hbm, ddr = (np.zeros(shape, np.int64) for _ in range(3))
    there = np.zeros(shape, np.bool_)
    for row, table in enumerate(tables):
        size = len(table.options)
        there[row, :size] = True
        cost[row, :size] = [round(option.ms * NS_PER_MS) for option in table.options]
        hbm[row, :size] = [option.hbm for option in table.options]
        ddr[row, :size] = [option.ddr for option in table.options]
    _check_sums((cost, hbm, ddr))
    order = np.broadcast_to(np.arange(width), shape).copy()
    hbm_limit, ddr_limit = min(budget.hbm, LARGEST), min(budget.ddr_per_rank // 1, LARGEST)
    return ChoiceProblem(cost, hbm, ddr, order, there, hbm_limit, ddr_limit)


def _check(table: TableOptions) -> None:
    for option in table.options:
        sizes = option.hbm >= 0 and option.ddr >= 0
        if not (sizes and 0 <= option.ms < float("inf")):
            raise InputError(
                f"Option {option.label} of table {table.name!r} has hbm {option.hbm!r}, ddr "
                f"{option.ddr!r} and ms {option.ms!r}; all must be finite and at least 0."
            )
        if max(option.hbm, option.ddr, option.ms * NS_PER_MS) >= LARGEST:
            raise InputError(
                f"Option {option.label} of table {table.name!r} has hbm {option.hbm!r}, ddr "
                f"{option.ddr!r} and ms {option.ms!r}; bytes and nanoseconds must be below 2**62."
            )


def _check_sums(parts: Sequence[Ints]) -> None:
    for what, part in zip(("ms", "hbm", "ddr"), parts, strict=True):
        if part.max(axis=1, initial=0).astype(float).sum() >= LARGEST:
            raise InputError(
                f"The largest {what} of all tables sum to 2**62 or more; give real sizes."
            )


_AT_ONCE = 2**22  # pairs of options compared at a time: some tens of MB


def prune(problem: ChoiceProblem) -> ChoiceProblem | None:
    """Without options that a sibling beats or that fit with no choice of the others.

    A sibling beats an option that is nowhere less than it, and stands later where all are equal:
    so no option of the answer under the tie rule is lost. None: some table has nothing left.
    """
    fitting = _fitting(problem)
    if not fitting.any(axis=1).all():
        return None
    problem = problem.keep(fitting)
    step = max(1, _AT_ONCE // problem.cost.shape[1] ** 2)
    kept = np.empty_like(problem.there)
    for first in range(0, problem.tables, step):
        rows = slice(first, first + step)
        kept[rows] = _unbeaten(
            problem.cost[rows], problem.hbm[rows], problem.ddr[rows], problem.there[rows]
        )
    return problem.keep(kept)


def _unbeaten(cost: Ints, hbm: Ints, ddr: Ints, there: Bools) -> Bools:
    no_more = there[:, :, None] & there[:, None, :]  # [table, i, j]: i is nowhere more than j
    less = np.zeros_like(no_more)
    for part in (cost, hbm, ddr):
        i, j = part[:, :, None], part[:, None, :]
        no_more &= i <= j
        less |= i < j
    places = np.arange(cost.shape[1])
    earlier = places[:, None] < places[None, :]
    beaten = (no_more & (less | earlier)).any(axis=1)
    return there & ~beaten


def _fitting(problem: ChoiceProblem) -> Bools:
    """Options that fit beside the least of every other table, in each memory for itself."""
    fitting = problem.there.copy()
    for part, limit in ((problem.hbm, problem.hbm_limit), (problem.ddr, problem.ddr_limit)):
        least = least_of(problem, part)
        room = limit - int(least.sum())
        fitting &= part - least[:, None] <= room
    return fitting


def least_of(problem: ChoiceProblem, part: Ints) -> Ints:
    """The least of each table's options."""
    return np.where(problem.there, part, np.iinfo(np.int64).max).min(axis=1, initial=2**63 - 1)


def reduced(problem: ChoiceProblem) -> ChoiceProblem:
    """The same choices in the same order, with smaller numbers and the same answer.

    Rows come in blocks, so sizes are multiples of some 2**10 bytes. A budget between two multiples
    is worth the lower one; a search that does not know it looks for the bytes between in vain.
    """
    cost, _ = _reduced(problem, problem.cost, 0)
    hbm, hbm_limit = _reduced(problem, problem.hbm, problem.hbm_limit)
    ddr, ddr_limit = _reduced(problem, problem.ddr, problem.ddr_limit)
    return replace(problem, cost=cost, hbm=hbm, ddr=ddr, hbm_limit=hbm_limit, ddr_limit=ddr_limit)


def _reduced(problem: ChoiceProblem, part: Ints, limit: int) -> tuple[Ints, int]:
    least = least_of(problem, part)
    above = np.where(problem.there, part - least[:, None], 0)
    factor = max(1, int(np.gcd.reduce(above, axis=None)))
    return above // factor, (limit - int(least.sum())) // factor


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """A smaller problem, which tables it is about, and what the others took already.

    `settled` has the place of each table's option in its own list, and -1 where it is open.
    """

    problem: ChoiceProblem
    tables: Ints
    settled: Ints
    cost: int = 0
    hbm: int = 0
    ddr: int = 0

    def narrowed(self, kept: Bools) -> Core:
        """Only those options; a table with one of them is settled."""
        left = self.problem.keep(kept)
        one = ~left.there[:, 1:].any(axis=1)
        settled = self.settled.copy()
        settled[self.tables[one]] = left.order[one, 0]
        cost, hbm, ddr = (int(part[one, 0].sum()) for part in (left.cost, left.hbm, left.ddr))
        many = ~one
        inner = ChoiceProblem(
            left.cost[many],
            left.hbm[many],
            left.ddr[many],
            left.order[many],
            left.there[many],
            left.hbm_limit - hbm,
            left.ddr_limit - ddr,
        )
        return Core(
            inner, self.tables[many], settled, self.cost + cost, self.hbm + hbm, self.ddr + ddr
        )

    def answer(self, choice: Ints) -> ChosenOptions:
        """The whole choice, with one column for each open table."""
        cost, hbm, ddr = self.problem.totals(choice)
        options = self.settled.copy()
        options[self.tables] = self.problem.order[np.arange(len(choice)), choice]
        return ChosenOptions(
            cost + self.cost, hbm + self.hbm, ddr + self.ddr, tuple(options.tolist())
        )

    def over(self) -> bool:
        """The settled tables alone exceed a budget."""
        return self.problem.hbm_limit < 0 or self.problem.ddr_limit < 0


@dataclass(frozen=True, slots=True, order=True)
class ChosenOptions:
    """A choice that fits; less is better, by the tie rule."""

    cost: int
    hbm: int
    ddr: int
    options: tuple[int, ...]


def whole(problem: ChoiceProblem) -> Core:
    """The problem itself as a core, tables with one option settled."""
    tables = np.arange(problem.tables)
    start = Core(problem, tables, np.full(problem.tables, -1, np.int64))
    return start.narrowed(problem.there)
