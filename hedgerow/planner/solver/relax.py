"""The relaxed problem, in which a table may be split between options: a bound and memory prices.

For given prices of both memories, let each table take its cheapest option at those prices. The sum
of these costs less the worth of the budgets is a lower bound. The best prices are found by column
generation on a linear program of three rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .choice_problem import ChoiceProblem, Floats, Ints

_PIVOTS = 1000


class ThreeRows:
    """Finds least-cost shares of choices that sum to one, within two budgets.

    Exceeding a budget costs the end price. Uses the simplex method on a basis of three columns. Not
    thread-safe.
    """

    def __init__(self, limits: tuple[int, int], ends: tuple[float, float]) -> None:
        # Scaling rows by the budgets keeps the numbers near one.
        self._units = np.array([max(1.0, float(limit)) for limit in limits])
        self._right = np.array([*(np.array(limits, np.float64) / self._units), 1.0])
        costs = [0.0, 0.0, *(np.array(ends) * self._units)]
        self._cost = np.array(costs)
        self._columns = np.array([[1, 0, -1, 0], [0, 1, 0, -1], [0, 0, 0, 0]], np.float64)
        self._basis: list[int] = []

    def add(self, cost: int, hbm: int, ddr: int) -> None:
        """Adds a choice as a column."""
        column = np.array([*(np.array([hbm, ddr], np.float64) / self._units), 1.0])
        self._columns = np.column_stack([self._columns, column])
        self._cost = np.append(self._cost, float(cost))
        if not self._basis:
            over = column[:2] > self._right[:2]
            self._basis = [2 if over[0] else 0, 3 if over[1] else 1, 4]

    def solve(self) -> tuple[float, tuple[float, float]]:
        """Returns the least cost of the columns so far, and the price of a byte of each memory."""
        duals = np.zeros(3)
        for _ in range(_PIVOTS):
            inverse = np.linalg.inv(self._columns[:, self._basis])
            duals = self._cost[self._basis] @ inverse
            reduced = self._cost - duals @ self._columns
            reduced[self._basis] = 0
            entering = int(reduced.argmin())
            if reduced[entering] >= -1e-12 * (1 + np.abs(self._cost[self._basis]).max()):
                break
            if not self._pivot(inverse, entering):
                break
        shares = np.linalg.solve(self._columns[:, self._basis], self._right)
        prices = np.maximum(0, -duals[:2] / self._units)
        return float(self._cost[self._basis] @ shares), (float(prices[0]), float(prices[1]))

    def _pivot(self, inverse: np.ndarray, entering: int) -> bool:
        along = inverse @ self._columns[:, entering]
        shares = inverse @ self._right
        steps = np.where(along > 1e-12, np.maximum(shares, 0) / np.maximum(along, 1e-12), np.inf)
        leaving = int(steps.argmin())
        if not np.isfinite(steps[leaving]):
            return False
        self._basis[leaving] = entering
        return True

    def used(self) -> list[tuple[int, float]]:
        """Returns the choices in the basis, in the order they were added, with their shares."""
        shares = np.linalg.solve(self._columns[:, self._basis], self._right)
        pairs = zip(self._basis, shares, strict=True)
        return sorted((place - 4, float(share)) for place, share in pairs if place >= 4)


_STEPS = 500  # usually 20 to 60; after fewer steps the bound still holds
_ROUNDING = 1e-14  # relative error of a short sum; grows with the root of its length
_CLOSE = 1e-11  # relative to the bound: more steps gain less than rounding


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """A proven lower bound and its prices per byte. `regret` is what an option adds to the bound.

    `choices` are the choices that the best split combines. `rounded` is one choice close to it.
    """

    bound: float
    hbm_price: float
    ddr_price: float
    regret: Floats
    choices: tuple[Ints, ...]
    rounded: Ints
    doubt: float  # how far rounding may have moved the bound or a sum of regrets

    def beyond(self, limit: int) -> float:
        """Returns the regret above which no option is in a choice that costs at most `limit`."""
        return limit - self.bound + self.doubt

    @property
    def least_cost(self) -> int:
        """A lower bound of the cost of any choice."""
        return int(np.ceil(self.bound - self.doubt))


def relax(problem: ChoiceProblem) -> Relaxation | None:
    """Returns the best bound, or None if even split tables do not fit."""
    oracle = _Oracle(problem)
    for scale in (1.0, 2.0**10, 2.0**20, 2.0**30):
        found = _best(oracle, scale)
        if found is None:
            return None
        if not found[1]:
            return found[0]
    return found[0]


class _Oracle:
    """Evaluates the bound at given prices."""

    def __init__(self, problem: ChoiceProblem) -> None:
        self.problem = problem
        self.cost = np.where(problem.there, problem.cost, 0).astype(np.float64)
        self.cost[~problem.there] = np.inf
        self.hbm, self.ddr = problem.hbm.astype(np.float64), problem.ddr.astype(np.float64)
        self.rows = np.arange(problem.tables)
        self.most = float(np.where(problem.there, problem.cost, 0).max(axis=1, initial=0).sum())

    def at(self, hbm_price: float, ddr_price: float) -> tuple[Floats, Ints, float, float]:
        """Returns priced options, the cheapest of each table, the bound, and its rounding error."""
        priced = self.cost + hbm_price * self.hbm + ddr_price * self.ddr
        choice = priced.argmin(axis=1)
        spent = hbm_price * self.problem.hbm_limit + ddr_price * self.problem.ddr_limit
        total = float(priced[self.rows, choice].sum())  # prices and sizes are never negative
        doubt = 1e-3 + _ROUNDING * (total + spent) * max(1, self.problem.tables) ** 0.5
        return priced, choice, total - spent, doubt

    def steepest(self, part: Floats) -> float:
        """Returns the most that saving one byte can cost within a table, at least 1e-9."""
        finite = np.where(self.problem.there, self.cost, 0)
        rise = finite.max(axis=1, initial=0) - np.where(self.problem.there, self.cost, np.inf).min(
            axis=1, initial=np.inf
        )
        ordered = np.sort(np.where(self.problem.there, part, 2.0**63), axis=1)
        gaps = np.diff(ordered, axis=1)
        least = np.where(gaps > 0, gaps, np.inf).min(axis=1, initial=np.inf)
        return max(float((rise / least).max(initial=0)), 1e-9)


def _best(oracle: _Oracle, scale: float) -> tuple[Relaxation, bool] | None:
    """Returns the relaxation with prices up to `scale` times the steepest.

    The second value says whether a price is at that limit.
    """
    problem = oracle.problem
    ends = scale * oracle.steepest(oracle.hbm), scale * oracle.steepest(oracle.ddr)
    rows = ThreeRows((problem.hbm_limit, problem.ddr_limit), ends)
    best: tuple[float, float, float, float] = (-np.inf, 0.0, 0.0, 0.0)
    choices: list[Ints] = []
    prices = (0.0, 0.0)
    for _ in range(_STEPS):
        _, choice, bound, doubt = oracle.at(*prices)
        best = max(best, (bound - doubt, *prices, doubt))
        if best[0] > oracle.most:
            return None
        choices.append(choice)
        rows.add(*problem.totals(choice))
        reached, prices = rows.solve()
        if reached - best[0] <= _CLOSE * abs(reached) + 2 * best[3]:
            break
    at_end = any(price >= 0.999 * end for price, end in zip(best[1:3], ends, strict=True))
    used = [(choices[place], share) for place, share in rows.used()]
    return _relaxation(oracle, best[1:3], used), at_end


def _relaxation(
    oracle: _Oracle, prices: tuple[float, ...], used: list[tuple[Ints, float]]
) -> Relaxation:
    priced, choice, bound, doubt = oracle.at(*prices)
    regret = priced - priced[oracle.rows, choice][:, None]
    parts = (choice, *(part for part, _ in used))
    return Relaxation(bound, prices[0], prices[1], regret, parts, _rounded(used), doubt)


def _rounded(used: list[tuple[Ints, float]]) -> Ints:
    """Returns a choice near the split one: each part gets as many split tables as its share."""
    choices = np.stack([choice for choice, _ in used])
    split = np.flatnonzero((choices != choices[0]).any(axis=0))
    upto = np.cumsum([share for _, share in used])
    places = (np.arange(len(split)) + 0.5) / max(1, len(split)) * upto[-1]
    part = np.minimum(np.searchsorted(upto, places), len(used) - 1)
    rounded = choices[0].copy()
    rounded[split] = choices[part, split]
    return rounded
