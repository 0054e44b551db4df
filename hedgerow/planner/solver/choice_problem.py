"""The choice of one option per table as arrays, and reductions that preserve the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.errors import InputError
from ..problem.options import PlanError, TableOptions
from ..problem.topology import Budget

NS_PER_MS = 1e6
LARGEST = 2**62  # limit of a sum, so that no int64 overflows

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceProblem:
    """A matrix of tables by options. Short rows are padded with options that are not `there`.

    `order` is an option's index in its table's own list. It rises along a row and breaks the last
    ties.
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
        """The number of tables."""
        return len(self.cost)

    def totals(self, choice: Ints) -> tuple[int, int, int]:
        """Returns cost, HBM and host bytes of one option per table, given by column."""
        rows = np.arange(self.tables)
        parts = (self.cost, self.hbm, self.ddr)
        cost, hbm, ddr = (int(part[rows, choice].sum()) for part in parts)
        return cost, hbm, ddr

    def fits(self, choice: Ints) -> bool:
        """Returns whether the choice holds both budgets, to the byte."""
        _, hbm, ddr = self.totals(choice)
        return hbm <= self.hbm_limit and ddr <= self.ddr_limit

    def keep(self, kept: Bools) -> ChoiceProblem:
        """Returns the problem with only the options in `kept`, moved to the left.

        Every table must keep one.
        """
        width = int(kept.sum(axis=1).max(initial=1))
        columns = np.argsort(~kept, axis=1, kind="stable")[:, :width]
        parts = (self.cost, self.hbm, self.ddr, self.order)
        cost, hbm, ddr, order = (np.take_along_axis(part, columns, axis=1) for part in parts)
        there = np.take_along_axis(kept, columns, axis=1)
        return ChoiceProblem(cost, hbm, ddr, order, there, self.hbm_limit, self.ddr_limit)


def choice_problem(tables: Sequence[TableOptions], budget: Budget) -> ChoiceProblem:
    """Returns the problem in whole nanoseconds and bytes.

    >>> from fractions import Fraction
    >>> from ..problem.options import Option
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


_AT_ONCE = 2**22  # pairs of options compared at once: some tens of MB


def prune(problem: ChoiceProblem) -> ChoiceProblem | None:
    """Removes options that another option of the table beats, and options that can never fit.

    One option beats another if it is nowhere larger and is smaller somewhere or comes first. So the
    best answer under the tie rule is kept. Returns None if a table has no option left.
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
    no_more = there[:, :, None] & there[:, None, :]  # [table, i, j]: i is nowhere larger than j
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
    """Returns the options that fit beside the smallest options of all other tables, per memory."""
    fitting = problem.there.copy()
    for part, limit in ((problem.hbm, problem.hbm_limit), (problem.ddr, problem.ddr_limit)):
        least = least_of(problem, part)
        room = limit - int(least.sum())
        fitting &= part - least[:, None] <= room
    return fitting


def least_of(problem: ChoiceProblem, part: Ints) -> Ints:
    """Returns the smallest value among each table's options."""
    return np.where(problem.there, part, np.iinfo(np.int64).max).min(axis=1, initial=2**63 - 1)


def reduced(problem: ChoiceProblem) -> ChoiceProblem:
    """Returns the problem with smaller numbers. Choices, their order and the answer are the same.

    Rows come in blocks, so sizes are multiples of a power of two bytes. A budget between two
    multiples is rounded down, so that the search does not try to fill bytes that no choice can.
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
    """A smaller problem, the tables it is about, and what the settled tables already use.

    `settled` holds the index of each table's option, -1 for an open table.
    """

    problem: ChoiceProblem
    tables: Ints
    settled: Ints
    cost: int = 0
    hbm: int = 0
    ddr: int = 0

    def narrowed(self, kept: Bools) -> Core:
        """Returns the core with only the options in `kept`.

        A table with one option becomes settled.
        """
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
        """Returns the complete choice, given one column per open table."""
        cost, hbm, ddr = self.problem.totals(choice)
        options = self.settled.copy()
        options[self.tables] = self.problem.order[np.arange(len(choice)), choice]
        return ChosenOptions(
            cost + self.cost, hbm + self.hbm, ddr + self.ddr, tuple(options.tolist())
        )

    def over(self) -> bool:
        """Returns whether the settled tables alone exceed a budget."""
        return self.problem.hbm_limit < 0 or self.problem.ddr_limit < 0


@dataclass(frozen=True, slots=True, order=True)
class ChosenOptions:
    """A choice that fits. By the tie rule, the smaller one is better."""

    cost: int
    hbm: int
    ddr: int
    options: tuple[int, ...]


def whole(problem: ChoiceProblem) -> Core:
    """Returns the whole problem as a core. Tables with one option are settled."""
    tables = np.arange(problem.tables)
    start = Core(problem, tables, np.full(problem.tables, -1, np.int64))
    return start.narrowed(problem.there)
