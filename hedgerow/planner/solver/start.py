"""A first choice that fits: a split one rounded, repaired, and improved table by table."""

from __future__ import annotations

import numpy as np

from .choice_problem import ChoiceProblem, Floats, Ints
from .relax import Relaxation

_MOVES = 200  # of one table each; tens suffice, and another start is worth more


def start(problem: ChoiceProblem, relaxation: Relaxation) -> Ints | None:
    """The best choice found that fits, or None; never slow, never sure."""
    starts = (relaxation.rounded, *relaxation.choices)
    found = [_polished(problem, relaxation.regret, choice) for choice in starts]
    fitting = [choice for choice in found if choice is not None]
    return min(fitting, key=lambda choice: problem.totals(choice), default=None)


def _polished(problem: ChoiceProblem, regret: Floats, choice: Ints) -> Ints | None:
    moves = _Moves(problem, choice)
    for _ in range(_MOVES):
        if moves.over == 0:
            break
        if not moves.repair(regret):
            return None
    for _ in range(_MOVES):
        if moves.over > 0 or not moves.improve():
            break
    return moves.choice if moves.over == 0 else None


class _Moves:
    """One choice, and what moving a table to another option would change; single-owner."""

    def __init__(self, problem: ChoiceProblem, choice: Ints) -> None:
        self._problem, self.choice = problem, choice.copy()
        self._rows = np.arange(problem.tables)
        self._units = max(1, problem.hbm_limit), max(1, problem.ddr_limit)
        self._count()

    def _count(self) -> None:
        _, self._hbm, self._ddr = self._problem.totals(self.choice)

    @property
    def over(self) -> float:
        """How far both budgets are exceeded, in shares of them; 0 if neither is."""
        return float(self._excess(np.int64(self._hbm), np.int64(self._ddr)))

    def _excess(self, hbm: Ints | np.int64, ddr: Ints | np.int64) -> Floats:
        problem = self._problem
        return (
            np.maximum(0, hbm - problem.hbm_limit) / self._units[0]
            + np.maximum(0, ddr - problem.ddr_limit) / self._units[1]
        )

    def _changed(self, part: Ints) -> Ints:
        return part - part[self._rows, self.choice][:, None]

    def repair(self, regret: Floats) -> bool:
        """The move that lessens the excess most for its regret; False if none lessens it."""
        problem = self._problem
        hbm = self._hbm + self._changed(problem.hbm)
        ddr = self._ddr + self._changed(problem.ddr)
        gain = np.where(problem.there, self.over - self._excess(hbm, ddr), 0.0)
        if gain.max() <= 0:
            return False
        price = np.maximum(0, regret - regret[self._rows, self.choice][:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(gain > 0, price / gain, np.inf)
        ties = rate == rate.min()
        self._take(int(np.where(ties, gain, 0).argmax()))
        return True

    def improve(self) -> bool:
        """The move that saves most and still fits; False if none saves."""
        problem = self._problem
        saved = -self._changed(problem.cost)
        fits = (self._hbm + self._changed(problem.hbm) <= problem.hbm_limit) & (
            self._ddr + self._changed(problem.ddr) <= problem.ddr_limit
        )
        saved = np.where(fits & problem.there, saved, 0)
        place = int(saved.argmax())
        if saved.flat[place] <= 0:
            return False
        self._take(place)
        return True

    def _take(self, place: int) -> None:
        table, option = divmod(place, self._problem.cost.shape[1])
        self.choice[table] = option
        self._count()
