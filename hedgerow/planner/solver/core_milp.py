"""Solves the remaining core of a problem with HiGHS, if scipy is installed."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from .choice_problem import ChoiceProblem, ChosenOptions, Core, Ints
from .relax import relax


@contextmanager
def stray_output_to_stderr() -> Iterator[None]:
    """Redirects standard output to standard error in the block, so that reports stay clean."""
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # flush C's own buffer before the redirection ends
        os.dup2(kept, 1)
        os.close(kept)


_UNIT = 2**18  # bytes: the solver's tolerance of 1e-6 is then a quarter of a byte
_LEAST_S = 0.05  # less time is not worth a call


def available() -> bool:
    """Returns whether scipy is installed."""
    return find_spec("scipy") is not None


def by_highs(core: Core, answer: ChosenOptions, deadline: float) -> tuple[ChosenOptions, float]:
    """Returns an answer that costs at most as much as `answer`, and a proven lower bound.

    Options whose regret is too large are removed first. The tie rule is not applied.
    """
    relaxation = relax(core.problem)
    if relaxation is None:
        return answer, answer.cost
    kept = core.problem.there & (relaxation.regret <= relaxation.beyond(answer.cost - core.cost))
    inner = core.narrowed(kept)
    least = relaxation.bound - relaxation.doubt + core.cost
    if not len(inner.tables):
        return answer, answer.cost
    choice, bound = choose(inner.problem, deadline - time.monotonic())
    if choice is not None and inner.problem.fits(choice):
        answer = min(answer, inner.answer(choice))
    return answer, min(float(answer.cost), max(least, bound + inner.cost))


def choose(problem: ChoiceProblem, seconds: float) -> tuple[Ints | None, float]:
    """Returns a choice of least cost that fits to the byte, and a proven bound.

    If rounding lets a choice exceed a budget, the budget is reduced by the excess and the problem
    is solved again. The bound of the first call is kept.
    """
    hbm_limit, ddr_limit = problem.hbm_limit, problem.ddr_limit
    bound, until = -np.inf, time.monotonic() + seconds
    while until - time.monotonic() > _LEAST_S or np.isneginf(bound):
        choice, reached, settled = _solve(problem, hbm_limit, ddr_limit, until - time.monotonic())
        bound = max(bound, reached) if np.isneginf(bound) else bound
        if choice is None:
            return None, np.inf if settled and np.isneginf(reached) else bound
        _, hbm, ddr = problem.totals(choice)
        if hbm <= problem.hbm_limit and ddr <= problem.ddr_limit:
            return choice, bound
        hbm_limit -= max(0, hbm - problem.hbm_limit)
        ddr_limit -= max(0, ddr - problem.ddr_limit)
    return None, bound


def _solve(
    problem: ChoiceProblem, hbm_limit: int, ddr_limit: int, seconds: float
) -> tuple[Ints | None, float, bool]:
    """Calls the solver once. Returns a choice, the bound, and whether the solver finished."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    table, column = np.nonzero(problem.there)
    count = len(table)
    base = np.where(problem.there, problem.cost, np.iinfo(np.int64).max).min(axis=1)
    one = csr_array((np.ones(count), (table, np.arange(count))), shape=(problem.tables, count))
    sizes = np.stack([problem.hbm[table, column], problem.ddr[table, column]]) / _UNIT
    limits: Any = np.array([hbm_limit, ddr_limit]) / _UNIT  # scipy's stub says float; arrays work
    options: dict[str, Any] = {"mip_rel_gap": 0, "time_limit": max(_LEAST_S, seconds)}
    rows = [LinearConstraint(one, 1, 1), LinearConstraint(sizes, -np.inf, limits)]
    with stray_output_to_stderr():  # HiGHS sometimes prints a line
        result = milp(
            (problem.cost[table, column] - base[table]).astype(np.float64),
            integrality=np.ones(count),
            bounds=Bounds(0, 1),
            constraints=rows,
            options=options,
        )
    least = int(base.sum())
    bound = result.mip_dual_bound
    reached = -np.inf if bound is None or not np.isfinite(bound) else float(bound) + least - 1e-3
    if result.x is None:
        return None, reached, result.status == 2
    choice = np.zeros(problem.tables, np.int64)
    taken = result.x > 0.5
    choice[table[taken]] = column[taken]
    return choice, float(np.ceil(reached)), result.status == 0
