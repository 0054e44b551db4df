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
from .core_milp import available, choose
from .prune import prune

_VISITS = 60
_SECONDS = 10.0


def feasible(core: Core) -> Answer | None:
    """A choice that fits, if there is one; None if not."""
    found = branch(core, None, visits=1)
    if found.answer is not None or found.proven:
        return found.answer
    answer, settled = _least_hbm(core)
    if answer is None and not settled and available():
        choice, _ = choose(core.problem, _SECONDS)
        answer = None if choice is None else core.answer(choice)
    return answer


def _least_hbm(core: Core) -> tuple[Answer | None, bool]:
    """The choice with the least HBM whose host memory is in its budget, if that fits.

    It has one budget only, so that it is easy where the whole problem is hard; and whether the
    answer is sure.
    """
    problem = core.problem
    asked = replace(problem, cost=problem.hbm, hbm=problem.ddr, ddr=np.zeros_like(problem.ddr))
    left = prune(replace(asked, hbm_limit=problem.ddr_limit, ddr_limit=0))
    if left is None:
        return None, True
    found = branch(whole(left), None, visits=_VISITS)
    if found.answer is None or found.answer.cost > problem.hbm_limit:
        return None, found.least_cost > problem.hbm_limit
    columns = (problem.order == np.array(found.answer.options)[:, None]) & problem.there
    return core.answer(columns.argmax(axis=1)), True


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
