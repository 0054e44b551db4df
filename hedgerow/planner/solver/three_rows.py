"""A linear programme of three rows that grows by columns: shares of whole choices."""

from __future__ import annotations

import numpy as np

_PIVOTS = 1000


class ThreeRows:
    """Least cost of shares that sum to one, within two budgets; going over costs the end price.

    Simplex on a basis of three columns; single-owner.
    """

    def __init__(self, limits: tuple[int, int], ends: tuple[float, float]) -> None:
        # Rows in units of the budgets keep the numbers near one.
        self._units = np.array([max(1.0, float(limit)) for limit in limits])
        self._right = np.array([*(np.array(limits, np.float64) / self._units), 1.0])
        costs = [0.0, 0.0, *(np.array(ends) * self._units)]
        self._cost = np.array(costs)
        self._columns = np.array([[1, 0, -1, 0], [0, 1, 0, -1], [0, 0, 0, 0]], np.float64)
        self._basis: list[int] = []

    def add(self, cost: int, hbm: int, ddr: int) -> None:
        """One more whole choice."""
        column = np.array([*(np.array([hbm, ddr], np.float64) / self._units), 1.0])
        self._columns = np.column_stack([self._columns, column])
        self._cost = np.append(self._cost, float(cost))
        if not self._basis:
            over = column[:2] > self._right[:2]
            self._basis = [2 if over[0] else 0, 3 if over[1] else 1, 4]

    def solve(self) -> tuple[float, tuple[float, float]]:
        """The least cost of the columns so far, and the prices of a byte of each memory."""
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
        """Places of the whole choices in the basis, in the order they were added, with shares."""
        shares = np.linalg.solve(self._columns[:, self._basis], self._right)
        pairs = zip(self._basis, shares, strict=True)
        return sorted((place - 4, float(share)) for place, share in pairs if place >= 4)
