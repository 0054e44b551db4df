"""What is missing where nothing fits: of each memory, alone and beside the other's budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ..problem.option import TableOptions
from ..problem.solution import Shortfall
from ..problem.topology import Budget
from .branch import branch
from .choice_problem import ChoiceProblem, Ints
from .common_factor import reduced
from .core import Answer, Core, whole
from .nearest import nearest
from .prune import least_of, prune
from .relax import relax

_SECONDS = 5.0  # past this the figure is one that suffices, a few bytes above the least


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
    found = _least(whole(reduced(left)))
    if found is None:
        return None
    columns = (problem.order == np.array(found.options)[:, None]) & problem.there
    return int(wanted[columns].sum())


def _least(core: Core) -> Answer | None:
    """The answer of least cost; which of equal ones does not matter here."""
    found = nearest(core)
    relaxation = relax(core.problem) if len(core.tables) else None
    least = None if relaxation is None else relaxation.least_cost + core.cost
    if found is not None and found.cost == least:
        return found
    return branch(core, found, time.monotonic() + _SECONDS).answer


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
