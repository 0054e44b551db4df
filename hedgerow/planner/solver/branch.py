"""Best-first branch and bound, and the first choices that it starts from."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .choice_problem import LARGEST, Bools, ChoiceProblem, ChosenOptions, Core, Floats, Ints
from .halves import cheapest
from .relax import Relaxation, relax

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


_OPTIONS = (24, 72)  # cheap options beside the cheapest that a search of halves is tried with
_OPTIONS_TO_COMPARE = 20_000  # beyond this even equal tables are too many
_ROOM = 100_000  # choices of a half: some tens of MB


@dataclass(frozen=True, slots=True)
class Searched:
    """The best answer so far, and a cost that no answer undercuts; equal when it is proven."""

    answer: ChosenOptions | None
    least_cost: float  # infinite if there is no answer at all
    proven: bool


def branch(
    core: Core,
    answer: ChosenOptions | None,
    deadline: float = math.inf,
    visits: float = math.inf,
    within: int | None = None,
) -> Searched:
    """The best answer of the core by the tie rule; `answer` is one that is known already.

    Given up at the deadline, or after so many visits of parts of the core. With `within`, any
    answer that costs no more will do, and others are none.
    """
    most = LARGEST if within is None else within
    best, number = answer, itertools.count()
    heap: list[tuple[float, int, Core]] = [(-np.inf, next(number), core)]
    while heap:
        bound, _, node = heapq.heappop(heap)
        limit = most if best is None else best.cost
        if bound > limit:
            continue
        visits -= 1
        late = visits < 0 or time.monotonic() > deadline
        if late and not np.isneginf(bound):
            return Searched(best, math.ceil(bound), False)  # costs are whole
        found, children, bound = _visit(node, limit, late)  # the first in any case
        if found is not None and (best is None or found < best):
            best = found
            if within is not None:
                break
        for child in children:
            heapq.heappush(heap, (bound, next(number), child))
    return Searched(best, np.inf if best is None else best.cost, True)


def _visit(node: Core, limit: int, late: bool) -> tuple[ChosenOptions | None, list[Core], float]:
    """An answer of the node, its children, and their bound; without children it is settled.

    When it is late, only what is quick is done.
    """
    if node.over():
        return None, [], 0.0
    if not len(node.tables):
        answer = node.answer(np.zeros(0, np.int64))
        return (answer if answer.cost <= limit else None), [], 0.0
    relaxation = relax(node.problem)
    if relaxation is None or relaxation.least_cost + node.cost > limit:
        return None, [], 0.0
    found = start(node.problem, relaxation)
    answer = None if found is None else node.answer(found)
    if answer is not None and answer.cost > limit:
        answer = None
    if answer is not None:
        limit = answer.cost
    reached = relaxation.bound - relaxation.doubt + node.cost
    for upto in () if late else _margins(relaxation, node, limit):
        exact, complete = cheapest(node, relaxation, upto, _ROOM)
        if not complete:
            break
        if exact is not None:
            return exact, [], 0.0
        if upto == limit:
            return None, [], 0.0
        reached = upto + 1
    kept = node.problem.there & (relaxation.regret <= relaxation.beyond(limit - node.cost))
    return answer, list(_children(node, relaxation, kept)), reached


def _margins(relaxation: Relaxation, node: Core, limit: int) -> list[int]:
    """Costs up to which the node is searched whole, rising up to the limit."""
    regrets = np.sort(relaxation.regret[node.problem.there])
    regrets = regrets[len(node.tables) :]  # one of each table is the cheapest
    margins = []
    for options in _OPTIONS:
        if options < len(regrets):
            margins.append(int(relaxation.bound + regrets[options]) + node.cost)
    return sorted({upto for upto in margins if upto < limit} | _last(node, relaxation, limit))


def _last(node: Core, relaxation: Relaxation, limit: int) -> set[int]:
    """The limit itself, if few enough options are within it; equal tables count once."""
    problem = node.problem
    within = problem.there & (relaxation.regret <= relaxation.beyond(limit - node.cost))
    tables = np.flatnonzero(within.sum(axis=1) > 1)
    if int(within[tables].sum()) - len(tables) > _OPTIONS_TO_COMPARE:
        return set()
    parts = [np.where(within, part, -1) for part in (problem.cost, problem.hbm, problem.ddr)]
    unlike = np.unique(np.concatenate(parts, axis=1)[tables], axis=0)
    width = problem.cost.shape[1]
    options = int((unlike[:, :width] >= 0).sum()) - len(unlike)
    return {limit} if options <= 2 * _OPTIONS[-1] else set()


def _children(node: Core, relaxation: Relaxation, kept: Bools) -> Iterator[Core]:
    """The options of the most split table in two parts, by the memory that it is split in."""
    problem = node.problem
    rows = np.arange(problem.tables)
    spreads = []
    for part, price in (
        (problem.hbm, relaxation.hbm_price),
        (problem.ddr, relaxation.ddr_price),
    ):
        taken = np.stack([part[rows, choice] for choice in relaxation.choices])
        spreads.append((price * np.ptp(taken, axis=0), part, taken))
    spread, part, taken = max(spreads, key=lambda each: each[0].max())
    if spread.max() > 0:
        table = int(spread.argmax())
        side = part[table] <= taken[:, table].min()
    else:
        table = int(kept.sum(axis=1).argmax())
        side = np.arange(problem.cost.shape[1]) == int(relaxation.choices[0][table])
    for half in (side, ~side):
        left = kept.copy()
        left[table] &= half
        if left[table].any():
            yield node.narrowed(left)


_ROUNDS = 30
_CHOICES = 2e9  # of the tables chosen anew: halves of some ten thousand
_ROOM_OF_NEAREST = 100_000


def nearest(core: Core, limit: int | None = None) -> ChosenOptions | None:
    """An answer at the bound if one is found, else a near one; with a limit, any that keeps it.

    Where the one memory is had for the other at the same price everywhere, every option is as good
    as another, and a search by bounds goes on for ever: sums that fill the budget to the byte are
    many, and found by trying. Nothing is left to chance: the same core gives the same answer.
    """
    if not len(core.tables):
        return None if core.over() else core.answer(np.zeros(0, np.int64))
    relaxation = relax(core.problem)
    found = None if relaxation is None else start(core.problem, relaxation)
    if relaxation is None or found is None:
        return None
    answer, enough = core.answer(found), relaxation.least_cost + core.cost
    if limit is not None:
        if enough > limit:
            return None
        enough = limit
    random = np.random.default_rng(0)
    for _ in range(_ROUNDS):
        if answer.cost <= enough:
            break
        answer = min(answer, _anew(core, relaxation, answer, random.permutation(len(core.tables))))
    return answer


def _anew(core: Core, relaxation: Relaxation, answer: ChosenOptions, order: Ints) -> ChosenOptions:
    """The best with only so many tables open, in that order, as halves can hold."""
    problem = core.problem
    within = problem.there & (relaxation.regret <= relaxation.beyond(answer.cost - core.cost))
    sizes = np.cumsum(np.log(np.maximum(1, within[order].sum(axis=1))))
    tables = order[sizes <= np.log(_CHOICES)]
    kept = problem.there & (problem.order == np.array(answer.options)[core.tables][:, None])
    kept[tables] |= within[tables]
    part = core.narrowed(kept)
    bound = relax(part.problem) if len(part.tables) else None
    if bound is None:
        return answer
    least = bound.least_cost + part.cost
    upto = answer.cost - 1
    while upto >= least:
        exact, complete = cheapest(part, bound, upto, _ROOM_OF_NEAREST)
        if complete:
            return answer if exact is None else exact
        upto = least + (upto - least) // 8 if upto > least else least - 1
    return answer
