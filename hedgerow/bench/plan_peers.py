"""Who else solves a planning problem: HiGHS on all of it, and the published planner's grid."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..planner.problem.option import TableOptions
from ..planner.problem.topology import Budget
from ..planner.solver.choice_problem import choice_problem
from ..planner.solver.core_milp import choose
from .baseline_vector import GridTable, grid_choices


def plain_highs(tables: list[TableOptions], budget: Budget) -> tuple[int, ...] | None:
    """HiGHS on every option of every table: nothing pruned, no prices, no start."""
    choice, _ = choose(choice_problem(tables, budget), math.inf)
    return None if choice is None else tuple(choice.tolist())


def grid_peer(
    hbm_bins: int, ddr_bins: int
) -> Callable[[list[TableOptions], Budget], tuple[int, ...] | None]:
    """The grid with so many bins on each axis: as the published planner has them on few devices."""

    def grid(tables: list[TableOptions], budget: Budget) -> tuple[int, ...] | None:
        limits = budget.hbm, int(budget.ddr_per_rank)
        by_memory = [_by_memory(table) for table in tables]
        order = sorted(range(len(tables)), key=lambda i: _memory(tables[i], by_memory[i][0]))
        asked = [_grid_table(tables[i], by_memory[i]) for i in order]
        fitting = []
        for choice in grid_choices(asked, limits, (hbm_bins, ddr_bins)):
            options = [0] * len(tables)
            for table, place in zip(order, choice, strict=True):
                options[table] = by_memory[table][place]
            if _fits(tables, options, budget):
                fitting.append(tuple(options))
        return min(fitting, key=lambda options: cost_of(tables, options), default=None)

    return grid


def _by_memory(table: TableOptions) -> list[int]:
    """Places of options by rising total memory, as the published planner takes them."""
    return sorted(range(len(table.options)), key=lambda place: _memory(table, place))


def _memory(table: TableOptions, place: int) -> int:
    return table.options[place].hbm + table.options[place].ddr


def _grid_table(table: TableOptions, places: list[int]) -> GridTable:
    options = [table.options[place] for place in places]
    return GridTable(
        [option.hbm for option in options],
        [option.ddr for option in options],
        [option.ms for option in options],
    )


def _fits(tables: list[TableOptions], options: list[int], budget: Budget) -> bool:
    chosen = [table.options[place] for table, place in zip(tables, options, strict=True)]
    hbm, ddr = sum(option.hbm for option in chosen), sum(option.ddr for option in chosen)
    return hbm <= budget.hbm and ddr <= budget.ddr_per_rank


def cost_of(tables: list[TableOptions], options: tuple[int, ...]) -> int:
    """In whole nanoseconds."""
    chosen = zip(tables, options, strict=True)
    return sum(round(table.options[place].ms * 1e6) for table, place in chosen)
