"""All ranks taken as one: the best choice of ways, and a bound that no placement undercuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .branch import branch
from .choice_problem import ChoiceProblem
from .core import whole
from .placement_problem import PlacementTable, Ranks, ns
from .prune import prune


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Places of options whose times sum to the least, and the busiest rank's bound from it."""

    options: tuple[int, ...]
    busiest: int


def aggregate(
    tables: Sequence[PlacementTable],
    ranks: Ranks,
    longest: int | None,
    deadline: float,
    room: float = 1.0,
) -> Aggregate | None:
    """The bound of placements where no whole table takes more than `longest` nanoseconds.

    Memory of all ranks is one, and so are pools, of which a share of `room` may be taken; None if
    not even that fits.
    """
    problem = as_one(tables, ranks, longest, room)
    if not problem.there.any(axis=1).all():
        return None
    left = prune(problem)
    if left is None:
        return None
    found = branch(whole(left), None, deadline)
    if found.answer is None:
        return None
    even = -(-int(min(found.answer.cost, np.ceil(found.least_cost))) // ranks.count)
    alone = max(min(ns(o) for o in table.options) for table in tables)
    return Aggregate(found.answer.options, max(even, alone))


def as_one(
    tables: Sequence[PlacementTable], ranks: Ranks, longest: int | None, room: float = 1.0
) -> ChoiceProblem:
    """The choice with all ranks as one; options that fit on no rank are not there."""
    width = max(len(table.options) for table in tables)
    shape = (len(tables), width)
    cost, hbm, ddr = (np.zeros(shape, np.int64) for _ in range(3))
    there = np.zeros(shape, np.bool_)
    share = (ranks.pool // np.maximum(1, ranks.per_machine)).min()
    for row, table in enumerate(tables):
        for column, option in enumerate(table.options):
            times = ranks.count if option.everywhere else 1
            cost[row, column] = ns(option) * times
            hbm[row, column], ddr[row, column] = option.hbm * times, option.ddr * times
            if option.everywhere:
                fits = option.hbm <= ranks.hbm.min() and option.ddr <= share
            else:
                fits = option.hbm <= ranks.hbm.max() and option.ddr <= ranks.pool.max()
                fits = fits and (longest is None or ns(option) <= longest)
            there[row, column] = fits
    order = np.broadcast_to(np.arange(width), shape).copy()
    limits = int(ranks.hbm.sum()), int(ranks.pool.sum())
    if room < 1:
        limits = int(room * limits[0]), int(room * limits[1])
    return ChoiceProblem(cost, hbm, ddr, order, there, *limits)


def everywhere(tables: Sequence[PlacementTable], options: Sequence[int]) -> int:
    """What every rank carries of tables that lie on all of them."""
    chosen = [table.options[place] for table, place in zip(tables, options, strict=True)]
    return sum(ns(option) for option in chosen if option.everywhere)
