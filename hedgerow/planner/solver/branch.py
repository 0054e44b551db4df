"""Best-first branch and bound, and heuristics for its first choices."""

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

_MOVES = 200  # of one table each; usually tens suffice


def start(problem: ChoiceProblem, relaxation: Relaxation) -> Ints | None:
    """Returns the best choice found that fits, or None. Fast, but may miss a choice that fits."""
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
    """A choice, and the effect of moving a table to another option. Not thread-safe."""

    def __init__(self, problem: ChoiceProblem, choice: Ints) -> None:
        self._problem, self.choice = problem, choice.copy()
        self._rows = np.arange(problem.tables)
        self._units = max(1, problem.hbm_limit), max(1, problem.ddr_limit)
        self._count()

    def _count(self) -> None:
        _, self._hbm, self._ddr = self._problem.totals(self.choice)

    @property
    def over(self) -> float:
        """How far the budgets are exceeded, relative to each; 0 if they hold."""
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
        """Makes the move that reduces the excess most per regret.

        Returns False if no move reduces it.
        """
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
        """Makes the move that saves most and still fits.

        Returns False if no move saves anything.
        """
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


_OPTIONS = (24, 72)  # options besides the cheapest with which a search of halves is tried
_OPTIONS_TO_COMPARE = 20_000  # beyond this even equal tables are too many
_ROOM = 100_000  # choices of a half: some tens of MB


@dataclass(frozen=True, slots=True)
class Searched:
    """The best answer so far, and a lower bound of the cost. They are equal when proven."""

    answer: ChosenOptions | None
    least_cost: float  # infinite if there is no answer
    proven: bool


def branch(
    core: Core,
    answer: ChosenOptions | None,
    deadline: float = math.inf,
    visits: float = math.inf,
    within: int | None = None,
) -> Searched:
    """Returns the best answer of the core under the tie rule.

    `answer` is one that is already known.

    The search stops at the deadline, or after `visits` nodes. With `within` it stops at the first
    answer that costs at most that much, and ignores others.
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
    """Returns an answer of the node, its children, and their bound.

    No children: the node is settled.

    When it is late, only fast steps are done.
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
    """Returns rising cost limits up to `limit` at which the node is searched completely."""
    regrets = np.sort(relaxation.regret[node.problem.there])
    regrets = regrets[len(node.tables) :]  # one option per table is the cheapest
    margins = []
    for options in _OPTIONS:
        if options < len(regrets):
            margins.append(int(relaxation.bound + regrets[options]) + node.cost)
    return sorted({upto for upto in margins if upto < limit} | _last(node, relaxation, limit))


def _last(node: Core, relaxation: Relaxation, limit: int) -> set[int]:
    """Returns {limit} if few enough options are within it, else nothing.

    Equal tables count once.
    """
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
    """Yields two halves of the node: the most split table's options, divided by memory."""
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
_CHOICES = 2e9  # product of the options of the reopened tables: halves of some ten thousand choices
_ROOM_OF_NEAREST = 100_000


def nearest(core: Core, limit: int | None = None) -> ChosenOptions | None:
    """Returns an answer at the bound if it finds one, else a close one.

    With `limit`, any within it.

    If one memory can be traded for the other at one price everywhere, all options are equally good
    and branch and bound does not end. Then many sums fill the budget to the byte, and random search
    finds one. The seed is fixed, so the same core gives the same answer.
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
    """Returns the best answer after reopening as many tables of `order` as two halves can hold."""
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
