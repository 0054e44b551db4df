"""The choice as arrays: of each table one option, at least cost, within two budgets; all whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.errors import InputError
from ..problem.option import TableOptions
from ..problem.solution import PlanError
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
