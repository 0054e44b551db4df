"""Whether anything fits at all, and then one choice that does."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..problem.option import TableOptions
from ..problem.topology import Budget
from .branch import branch
from .choice_problem import choice_problem
from .common_factor import reduced
from .core import Answer, Core, whole
from .nearest import nearest
from .prune import prune

_SECONDS = 2.0  # a question takes milliseconds, unless the last bytes decide


def feasible(core: Core, deadline: float = math.inf) -> Answer | None:
    """A choice that fits, by little HBM with the host memory in its budget; None if none does.

    It has one budget only, so that it is easy where the whole problem is hard. None, too, if none
    is found by the deadline.
    """
    problem = core.problem
    if core.over():
        return None
    left = prune(problem)
    if left is None:
        return None
    left = reduced(left)
    asked = replace(left, cost=left.hbm, hbm=left.ddr, ddr=np.zeros_like(left.ddr))
    asked = prune(replace(asked, hbm_limit=left.ddr_limit, ddr_limit=0))
    found = None if asked is None else _within(whole(asked), left.hbm_limit, deadline)
    if found is None:
        return None
    columns = (problem.order == np.array(found.options)[:, None]) & problem.there
    return core.answer(columns.argmax(axis=1))


def _within(core: Core, limit: int, deadline: float) -> Answer | None:
    """An answer that costs at most so much."""
    found = nearest(core, limit)
    if found is not None and found.cost <= limit:
        return found
    return branch(core, None, deadline, within=limit).answer


def fits(tables: Sequence[TableOptions], budget: Budget) -> bool:
    """Whether some choice is found to fit: what is not known after seconds is taken not to.

    >>> from fractions import Fraction
    >>> from ..problem.option import Option
    >>> table = TableOptions("item", (Option("HBM_ONLY@1.0", 8, 0, 0.5),))
    >>> fits([table], Budget(8, Fraction(0))), fits([table], Budget(7, Fraction(0)))
    (True, False)
    """
    core = whole(choice_problem(tables, budget))
    return feasible(core, time.monotonic() + _SECONDS) is not None
