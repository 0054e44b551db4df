"""Best-first branch and bound: halves the options of a split table until cores are small."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .choice_problem import LARGEST, Bools
from .core import Answer, Core
from .halves import cheapest
from .relax import Relaxation, relax
from .start import start

_OPTIONS = (24, 72)  # cheap options beside the cheapest that a search of halves is tried with
_OPTIONS_TO_COMPARE = 20_000  # beyond this even equal tables are too many
_ROOM = 100_000  # choices of a half: some tens of MB


@dataclass(frozen=True, slots=True)
class Searched:
    """The best answer so far, and a cost that no answer undercuts; equal when it is proven."""

    answer: Answer | None
    least_cost: float  # infinite if there is no answer at all
    proven: bool


def branch(
    core: Core,
    answer: Answer | None,
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


def _visit(node: Core, limit: int, late: bool) -> tuple[Answer | None, list[Core], float]:
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
