"""The relaxed choice, where tables may be split between options: a bound, and the memories' prices.

The bound is the greatest, over prices of both memories, of what the tables cost if each takes its
cheapest option at those prices, less the worth of the budgets. Any prices give a true bound; the
best ones are found by adding one whole choice at a time to a linear programme of three rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .choice_problem import ChoiceProblem, Floats, Ints
from .three_rows import ThreeRows

_STEPS = 500  # far more than the 20 to 60 that are seen; a bound that is not the best is still one
_CLOSE = 1e-11  # of the bound: what more steps would gain is lost in rounding


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """A proven bound with its prices (cost a byte); `regret` is what an option adds to the bound.

    `choices` are the whole choices that the best split is made of, and `rounded` one near it.
    """

    bound: float
    hbm_price: float
    ddr_price: float
    regret: Floats
    choices: tuple[Ints, ...]
    rounded: Ints
    doubt: float  # how far rounding may have moved the bound or a sum of regrets

    def beyond(self, limit: int) -> float:
        """The regret above which no option is in a choice that costs at most `limit`."""
        return limit - self.bound + self.doubt

    @property
    def least_cost(self) -> int:
        """No choice costs less than this."""
        return int(np.ceil(self.bound - self.doubt))


def relax(problem: ChoiceProblem) -> Relaxation | None:
    """The best bound; None if even split tables do not fit."""
    oracle = _Oracle(problem)
    for scale in (1.0, 2.0**10, 2.0**20, 2.0**30):
        found = _best(oracle, scale)
        if found is None:
            return None
        if not found[1]:
            return found[0]
    return found[0]


class _Oracle:
    """Evaluates prices."""

    def __init__(self, problem: ChoiceProblem) -> None:
        self.problem = problem
        self.cost = np.where(problem.there, problem.cost, 0).astype(np.float64)
        self.cost[~problem.there] = np.inf
        self.hbm, self.ddr = problem.hbm.astype(np.float64), problem.ddr.astype(np.float64)
        self.rows = np.arange(problem.tables)
        self.most = float(np.where(problem.there, problem.cost, 0).max(axis=1, initial=0).sum())

    def at(self, hbm_price: float, ddr_price: float) -> tuple[Floats, Ints, float]:
        """Priced options, the cheapest of each table, and the bound."""
        priced = self.cost + hbm_price * self.hbm + ddr_price * self.ddr
        choice = priced.argmin(axis=1)
        spent = hbm_price * self.problem.hbm_limit + ddr_price * self.problem.ddr_limit
        return priced, choice, float(priced[self.rows, choice].sum()) - spent

    def doubt(self, priced: Floats, choice: Ints, bound: float) -> float:
        """How far rounding may have moved that bound, or a sum of regrets."""
        size = float(np.abs(priced[self.rows, choice]).sum()) + abs(bound)
        return 1e-3 + 1e-14 * max(1, self.problem.tables) ** 0.5 * size

    def steepest(self, part: Floats) -> float:
        """The most that one byte less can be worth within a table, or 1."""
        finite = np.where(self.problem.there, self.cost, 0)
        rise = finite.max(axis=1, initial=0) - np.where(self.problem.there, self.cost, np.inf).min(
            axis=1, initial=np.inf
        )
        ordered = np.sort(np.where(self.problem.there, part, 2.0**63), axis=1)
        gaps = np.diff(ordered, axis=1)
        least = np.where(gaps > 0, gaps, np.inf).min(axis=1, initial=np.inf)
        return max(float((rise / least).max(initial=0)), 1e-9)


def _best(oracle: _Oracle, scale: float) -> tuple[Relaxation, bool] | None:
    """The best prices up to `scale` times the steepest; whether a price stands at that end."""
    problem = oracle.problem
    ends = scale * oracle.steepest(oracle.hbm), scale * oracle.steepest(oracle.ddr)
    rows = ThreeRows((problem.hbm_limit, problem.ddr_limit), ends)
    best: tuple[float, float, float] = (-np.inf, 0.0, 0.0)
    choices: list[Ints] = []
    prices = (0.0, 0.0)
    for _ in range(_STEPS):
        priced, choice, bound = oracle.at(*prices)
        best = max(best, (bound, *prices))
        if bound - oracle.doubt(priced, choice, bound) > oracle.most * (1 + 1e-9) + 1:
            return None
        choices.append(choice)
        rows.add(*problem.totals(choice))
        reached, prices = rows.solve()
        if reached - best[0] <= _CLOSE * abs(reached) + 1e-3:
            break
    at_end = any(price >= 0.999 * end for price, end in zip(best[1:], ends, strict=True))
    used = [(choices[place], share) for place, share in rows.used()]
    return _relaxation(oracle, best[1:], used), at_end


def _relaxation(
    oracle: _Oracle, prices: tuple[float, ...], used: list[tuple[Ints, float]]
) -> Relaxation:
    priced, choice, bound = oracle.at(*prices)
    regret = priced - priced[oracle.rows, choice][:, None]
    doubt = oracle.doubt(priced, choice, bound)
    parts = (choice, *(part for part, _ in used))
    return Relaxation(bound, prices[0], prices[1], regret, parts, _rounded(used), doubt)


def _rounded(used: list[tuple[Ints, float]]) -> Ints:
    """A whole choice near the split one: of the tables split, as many to each part as its share."""
    choices = np.stack([choice for choice, _ in used])
    split = np.flatnonzero((choices != choices[0]).any(axis=0))
    upto = np.cumsum([share for _, share in used])
    places = (np.arange(len(split)) + 0.5) / max(1, len(split)) * upto[-1]
    part = np.minimum(np.searchsorted(upto, places), len(used) - 1)
    rounded = choices[0].copy()
    rounded[split] = choices[part, split]
    return rounded
