"""Drops options that cannot be in the answer, whatever the prices are."""

from __future__ import annotations

import numpy as np

from .choice_problem import Bools, ChoiceProblem, Ints

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
