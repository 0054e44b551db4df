"""Takes out what all sizes have in common: bytes that every choice takes, and a common factor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .choice_problem import ChoiceProblem, Ints
from .prune import least_of


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
