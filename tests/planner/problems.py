"""Small made-up problems, and the two ways to solve them that share nothing with ours."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np

from hedgerow.planner.problem.options import Option, TableOptions
from hedgerow.planner.problem.topology import Budget
from hedgerow.planner.solver.choice_problem import choice_problem
from hedgerow.planner.solver.core_milp import choose


def random_problem(
    seed: int, tables: int, options: int, *, coarse: bool = False
) -> tuple[list[TableOptions], Budget]:
    """Tables whose options trade memory for time; coarse ones have many ties."""
    dice = random.Random(seed)
    unit = 10 if coarse else 10 ** dice.randint(3, 9)
    made = []
    for index in range(tables):
        rows = dice.randint(1, 4) if coarse else dice.uniform(0.1, 10)
        ways = []
        for place in range(dice.randint(1, options)):
            share = dice.choice((0, 0.5, 1)) if coarse else dice.random()
            hbm, ddr = int(rows * share * unit), int(rows * dice.choice((1, 1 - share)) * unit)
            ms = dice.randint(0, 3) if coarse else rows * (1.1 - share) * dice.uniform(0.5, 2)
            ways.append(Option(f"o{place}", hbm, ddr, float(ms)))
        made.append(TableOptions(f"t{index}", tuple(ways)))
    return made, _budget(dice, made)


def _budget(dice: random.Random, tables: list[TableOptions]) -> Budget:
    """Somewhere between what hardly anything and what everything fits in; often on a full byte."""
    chosen = [dice.choice(table.options) for table in tables]
    hbm, ddr = sum(o.hbm for o in chosen), sum(o.ddr for o in chosen)
    slack = dice.choice((0.7, 0.9, 1.0, 1.0, 1.2))
    return Budget(int(hbm * slack), Fraction(int(ddr * dice.choice((0.8, 1.0, 1.3))) * 3, 3))


def exhaustive(
    tables: list[TableOptions], budget: Budget
) -> tuple[int, int, int, tuple[int, ...]] | None:
    """The best of all choices by the tie rule; None if none fits."""
    best = None
    for choice in itertools.product(*(range(len(table.options)) for table in tables)):
        chosen = [table.options[place] for table, place in zip(tables, choice, strict=True)]
        hbm, ddr = sum(o.hbm for o in chosen), sum(o.ddr for o in chosen)
        if hbm <= budget.hbm and ddr <= budget.ddr_per_rank:
            key = (sum(round(o.ms * 1e6) for o in chosen), hbm, ddr, choice)
            best = key if best is None else min(best, key)
    return best


def plain_highs(tables: list[TableOptions], budget: Budget) -> int | None:
    """The least cost by HiGHS on everything, nothing pruned or fixed; None if nothing fits."""
    problem = choice_problem(tables, budget)
    choice, _ = choose(problem, 60.0)
    return None if choice is None else problem.totals(choice)[0]


def cost(tables: list[TableOptions], choice: tuple[int, ...]) -> int:
    """In whole nanoseconds."""
    return int(np.sum([round(t.options[c].ms * 1e6) for t, c in zip(tables, choice, strict=True)]))
