"""Whether anything fits at all, and then one choice that does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .branch import branch
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
