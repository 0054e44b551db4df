"""A closer bound where whole tables are long: a rank with one carries what all ranks carry, too.

With a busiest rank of Z and a longest whole table of c, all ranks carry at most Z - c of tables
that lie on all of them. Every Z for which no c leaves enough room is below the best.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .choice_problem import ChoiceProblem
from .placement_problem import PlacementTable, Ranks
from .relax import relax

_STEPS, _FINE = 120, 0.002  # sections of lengths that are told apart; of Z, how close to look
Options = tuple[int, ...]


def closer(
    problem: ChoiceProblem,
    tables: Sequence[PlacementTable],
    ranks: Ranks,
    within: tuple[int, int],
    deadline: float,
) -> tuple[int, list[Options]]:
    """A bound of the busiest rank between two known ones, and choices that come near it.

    `problem` is of all ranks taken as one.
    """
    low, high = within
    asked = _Asked(problem, tables, ranks)
    choices: list[Options] = []
    while high - low > _FINE * high and time.monotonic() < deadline:
        middle = (low + high) // 2
        found = asked.possible(middle)
        if found:
            high, choices = middle, [*found, *choices]
        else:
            low = middle + 1
    return low, choices


class _Asked:
    """The problem with its host memory left out, and what lies on all ranks counted instead."""

    def __init__(
        self, problem: ChoiceProblem, tables: Sequence[PlacementTable], ranks: Ranks
    ) -> None:
        self._problem, self._ranks = problem, ranks
        self._whole = np.zeros(problem.cost.shape, np.bool_)
        for row, table in enumerate(tables):
            flags = [not option.everywhere for option in table.options]
            self._whole[row, : len(flags)] = flags
        self._each = np.where(self._whole, 0, problem.cost // ranks.count)

    def possible(self, busiest: int) -> list[Options]:
        """Choices, rounded from split ones, that may have a busiest rank like this; none: none."""
        found, edges = [], np.linspace(busiest, 0, _STEPS + 1).astype(np.int64)
        for longest, shortest in itertools.pairwise(edges):
            there = self._problem.there & (~self._whole | (self._problem.cost <= longest))
            if not there.any(axis=1).all():
                break
            asked = replace(
                self._problem, ddr=self._each, there=there, ddr_limit=busiest - int(shortest)
            )
            relaxed = relax(asked)
            if relaxed is not None and relaxed.least_cost <= busiest * self._ranks.count:
                found.append(tuple(relaxed.rounded.tolist()))
        return found
