"""What is missing where nothing fits: of each memory, alone and beside the other's budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ..problem.option import TableOptions
from ..problem.solution import Shortfall
from ..problem.topology import Budget
from .branch import branch
from .choice_problem import ChoiceProblem, Ints
from .core import whole
from .prune import least_of, prune

_VISITS = 60  # enough to the byte for tens of tables; for thousands it is right but for some bytes


def shortfalls(problem: ChoiceProblem, budget: Budget) -> tuple[Shortfall, Shortfall]:
    """HBM's and the host's: the least that any plan needs, alone and beside the other's budget."""
    hbm = Shortfall(
        "hbm",
        Fraction(budget.hbm),
        int(least_of(problem, problem.hbm).sum()),
        least_with(problem, problem.hbm, problem.ddr, problem.ddr_limit),
    )
    ddr = Shortfall(
        "ddr",
        budget.ddr_per_rank,
        int(least_of(problem, problem.ddr).sum()),
        least_with(problem, problem.ddr, problem.hbm, problem.hbm_limit),
    )
    return hbm, ddr


def least_with(problem: ChoiceProblem, wanted: Ints, other: Ints, limit: int) -> int | None:
    """The least sum of one memory with the other within its budget; None if that cannot be."""
    asked = replace(
        problem, cost=wanted, hbm=other, ddr=np.zeros_like(other), hbm_limit=limit, ddr_limit=0
    )
    left = prune(asked)
    if left is None:
        return None
    found = branch(whole(left), None, visits=_VISITS)
    return None if found.answer is None else found.answer.cost


def never_fit(tables: Sequence[TableOptions], budget: Budget) -> list[str]:
    """Names of tables of which no option fits even on its own."""
    return [
        table.name
        for table in tables
        if not any(
            option.hbm <= budget.hbm and option.ddr <= budget.ddr_per_rank
            for option in table.options
        )
    ]
