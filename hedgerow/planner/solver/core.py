"""The core: tables that still have a choice, with the settled ones taken off the budgets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .choice_problem import Bools, ChoiceProblem, Ints


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

    def answer(self, choice: Ints) -> Answer:
        """The whole choice, with one column for each open table."""
        cost, hbm, ddr = self.problem.totals(choice)
        options = self.settled.copy()
        options[self.tables] = self.problem.order[np.arange(len(choice)), choice]
        return Answer(cost + self.cost, hbm + self.hbm, ddr + self.ddr, tuple(options.tolist()))

    def over(self) -> bool:
        """The settled tables alone exceed a budget."""
        return self.problem.hbm_limit < 0 or self.problem.ddr_limit < 0


@dataclass(frozen=True, slots=True, order=True)
class Answer:
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
