"""The exact solver: one option per table with the least time within both budgets."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ..problem.options import PlanError, Prices, Shortfall, Solution, TableOptions
from ..problem.topology import Budget
from .branch import Searched, branch, nearest
from .choice_problem import (
    NS_PER_MS,
    ChoiceProblem,
    ChosenOptions,
    Core,
    Ints,
    choice_problem,
    least_of,
    prune,
    reduced,
    whole,
)
from .core_milp import available, by_highs
from .relax import relax

_SECONDS = 2.0  # a check takes milliseconds, except when the last bytes decide


def feasible(core: Core, deadline: float = math.inf) -> ChosenOptions | None:
    """Returns a choice that fits, or None if there is none or none was found by the deadline.

    It minimizes HBM with host memory as the only budget, which is easier than the full problem.
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


def _within(core: Core, limit: int, deadline: float) -> ChosenOptions | None:
    """Returns an answer that costs at most `limit`, or None."""
    found = nearest(core, limit)
    if found is not None and found.cost <= limit:
        return found
    return branch(core, None, deadline, within=limit).answer


def fits(tables: Sequence[TableOptions], budget: Budget) -> bool:
    """Returns whether a choice that fits was found. If undecided after seconds, returns False.

    >>> from fractions import Fraction
    >>> from ..problem.options import Option
    >>> table = TableOptions("item", (Option("HBM_ONLY@1.0", 8, 0, 0.5),))
    >>> fits([table], Budget(8, Fraction(0))), fits([table], Budget(7, Fraction(0)))
    (True, False)
    """
    core = whole(choice_problem(tables, budget))
    return feasible(core, time.monotonic() + _SECONDS) is not None


_SHORTFALL_SECONDS = 5.0  # later, the figure suffices but may not be the least


def shortfalls(problem: ChoiceProblem, budget: Budget) -> tuple[Shortfall, Shortfall]:
    """Returns how much HBM and host memory any plan needs, alone and with the other budget."""
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
    """Returns the least sum of one memory with the other within `limit`, or None."""
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


def _least(core: Core) -> ChosenOptions | None:
    """Returns the answer of least cost. The tie rule is not applied."""
    found = nearest(core)
    relaxation = relax(core.problem) if len(core.tables) else None
    least = None if relaxation is None else relaxation.least_cost + core.cost
    if found is not None and found.cost == least:
        return found
    return branch(core, found, time.monotonic() + _SHORTFALL_SECONDS).answer


def never_fit(tables: Sequence[TableOptions], budget: Budget) -> list[str]:
    """Returns the names of tables of which no option fits even alone."""
    return [
        table.name
        for table in tables
        if not any(
            option.hbm <= budget.hbm and option.ddr <= budget.ddr_per_rank
            for option in table.options
        )
    ]


_VISITS = 600  # nodes of branch and bound before HiGHS is used; most problems take tens
_FIT_SECONDS = 60.0  # to decide whether anything fits; usually milliseconds
_TIE_VISITS = 300  # for the tie rule once the time is proven: there can be very many ties


def solve(tables: Sequence[TableOptions], budget: Budget, *, time_limit: float = 10.0) -> Solution:
    """Returns the choice of least time. Ties go to less HBM, less host memory, then option order.

    Times count in whole nanoseconds, memory in bytes. If nothing fits, PlanError says what is
    missing. After `time_limit` seconds the best choice so far is returned with its proven gap.

    >>> from fractions import Fraction
    >>> from ..problem.options import Option
    >>> ways = (Option("HBM_ONLY@1.0", 8, 0, 0.5), Option("HOST_ONLY@0", 0, 8, 2.0))
    >>> tables = [TableOptions("user", ways), TableOptions("item", ways)]
    >>> found = solve(tables, Budget(10, Fraction(10)))
    >>> found.status, found.choice, found.ms
    ('optimal', (0, 1), 2.5)
    """
    begun = time.monotonic()
    problem = choice_problem(tables, budget)
    if not tables:
        return _solution("empty", tables, (), 0.0, Prices(), begun)
    left = prune(problem)
    searched = None if left is None else _searched(whole(left), begun + time_limit)
    if left is None or searched is None or searched.answer is None:
        raise infeasible(tables, problem, budget)
    answer = searched.answer
    _verify(tables, budget, answer)
    status = "optimal" if searched.proven else "time_limit"
    bound = answer.cost if searched.proven else searched.least_cost
    return _solution(status, tables, answer.options, bound, _prices(problem), begun)


def _searched(core: Core, deadline: float) -> Searched:
    """Searches by branch and bound, with HiGHS if that takes long, then applies the tie rule.

    The number of visited nodes decides when to use HiGHS, not the time. So the answer is the same
    on every machine.
    """
    found = _fitting(core, branch(core, None, deadline, _VISITS))
    if found.proven or found.answer is None or time.monotonic() >= deadline:
        return found
    answer, least = found.answer, found.least_cost
    if available() and least < answer.cost:
        answer, bound = by_highs(core, answer, deadline)
        least = max(least, bound)
    again = branch(core, answer, deadline, math.inf if least < answer.cost else _TIE_VISITS)
    if again.proven or again.answer is None:
        return again
    least = max(least, again.least_cost)
    return Searched(again.answer, least, least >= again.answer.cost)


def _fitting(core: Core, found: Searched) -> Searched:
    """Adds an answer if there is any. This check has its own, longer deadline."""
    if found.answer is not None or found.proven:
        return found
    limit = time.monotonic() + _FIT_SECONDS
    answer = feasible(core, limit)
    if answer is None and time.monotonic() >= limit:
        raise PlanError(
            f"Whether the tables fit was not settled within {_FIT_SECONDS:g} s: the last bytes of "
            f"both memories decide. Give a little more of either, or fewer factors.",
            kind="time_limit",
        )
    return Searched(answer, found.least_cost, answer is None)


def _prices(problem: ChoiceProblem) -> Prices:
    """Returns the memory prices of the full problem, with options that do not fit at present."""
    relaxation = relax(problem)
    if relaxation is None:
        return Prices()
    return Prices(relaxation.hbm_price / NS_PER_MS, relaxation.ddr_price / NS_PER_MS)


def _verify(tables: Sequence[TableOptions], budget: Budget, answer: ChosenOptions) -> None:
    """Checks the bytes once more from the options themselves."""
    chosen = [t.options[place] for t, place in zip(tables, answer.options, strict=True)]
    hbm, ddr = sum(option.hbm for option in chosen), sum(option.ddr for option in chosen)
    if hbm > budget.hbm or ddr > budget.ddr_per_rank or (hbm, ddr) != (answer.hbm, answer.ddr):
        raise AssertionError(f"the solver's answer takes {hbm} and {ddr} bytes of {budget}")


def _solution(
    status: str,
    tables: Sequence[TableOptions],
    choice: Sequence[int],
    least_cost: float,
    prices: Prices,
    begun: float,
) -> Solution:
    chosen = [table.options[place] for table, place in zip(tables, choice, strict=True)]
    ms = math.fsum(option.ms for option in chosen)
    proven = status != "time_limit"
    bound = ms if proven else min(ms, max(0.0, least_cost / NS_PER_MS))
    return Solution(
        status=status,
        choice=tuple(choice),
        ms=ms,
        hbm=sum(option.hbm for option in chosen),
        ddr=sum(option.ddr for option in chosen),
        lower_bound_ms=bound,
        gap=(ms - bound) / ms if ms > 0 else 0.0,
        seconds=time.monotonic() - begun,
        prices=prices,
    )


def infeasible(tables: Sequence[TableOptions], problem: ChoiceProblem, budget: Budget) -> PlanError:
    """Returns the error that says exactly what is missing."""
    short = shortfalls(problem, budget)
    needs = [_need(each) for each in short]
    return PlanError(
        f"Does not fit: {len(tables)} tables; {'; '.join(needs)}. Give more memory, or allow "
        f"more modes.",
        shortfalls=short,
        never_fit=never_fit(tables, budget),
    )


def _need(short: Shortfall) -> str:
    least = short.least_alone if short.least_joint is None else short.least_joint
    name, scope = ("HBM", "device") if short.memory == "hbm" else ("host memory", "rank")
    return f"{name} needs {least:,} B a {scope} and has {int(short.budget):,}"
