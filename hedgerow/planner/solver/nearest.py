"""A choice as near to the bound as it gets: some tables at a time are chosen anew, exactly."""

from __future__ import annotations

import numpy as np

from .choice_problem import Ints
from .core import Answer, Core
from .halves import cheapest
from .relax import Relaxation, relax
from .start import start

_ROUNDS = 30
_CHOICES = 2e9  # of the tables chosen anew: halves of some ten thousand
_ROOM = 100_000


def nearest(core: Core, limit: int | None = None) -> Answer | None:
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


def _anew(core: Core, relaxation: Relaxation, answer: Answer, order: Ints) -> Answer:
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
        exact, complete = cheapest(part, bound, upto, _ROOM)
        if complete:
            return answer if exact is None else exact
        upto = least + (upto - least) // 8 if upto > least else least - 1
    return answer
