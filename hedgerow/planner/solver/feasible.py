"""Whether anything fits at all, and then one choice that does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..problem.option import TableOptions
from ..problem.topology import Budget
from .branch import branch
from .choice_problem import choice_problem
from .core import Answer, Core, whole
from .prune import prune


def feasible(core: Core) -> Answer | None:
    """The choice with the least HBM whose host memory is in its budget, if that fits; else None.

    It has one budget only, so that it is easy where the whole problem is hard.
    """
    problem = core.problem
    if core.over():
        return None
    asked = replace(problem, cost=problem.hbm, hbm=problem.ddr, ddr=np.zeros_like(problem.ddr))
    left = prune(replace(asked, hbm_limit=problem.ddr_limit, ddr_limit=0))
    if left is None:
        return None
    found = branch(whole(left), None).answer
    if found is None or found.cost > problem.hbm_limit:
        return None
    columns = (problem.order == np.array(found.options)[:, None]) & problem.there
    return core.answer(columns.argmax(axis=1))


def fits(tables: Sequence[TableOptions], budget: Budget) -> bool:
    """Whether some choice fits.

    >>> from fractions import Fraction
    >>> from ..problem.option import Option
    >>> table = TableOptions("item", (Option("HBM_ONLY@1.0", 8, 0, 0.5),))
    >>> fits([table], Budget(8, Fraction(0))), fits([table], Budget(7, Fraction(0)))
    (True, False)
    """
    left = prune(choice_problem(tables, budget))
    return left is not None and feasible(whole(left)) is not None
