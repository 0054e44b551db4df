"""`hedgerow bench plan`: the exact choice against plain HiGHS and the published planner's grid."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hedgerow.core import checks
from hedgerow.core.errors import MissingExtraError
from hedgerow.planner.problem.options import Mode, Option, Solution, TableOptions, variants
from hedgerow.planner.problem.topology import Budget
from hedgerow.planner.solver.choice_problem import choice_problem
from hedgerow.planner.solver.core_milp import choose
from hedgerow.planner.solver.solve import solve

from .ours import Ours
from .plan_grid import GridTable, grid_choices
from .rounds import Progress, machine

WORLD, MACHINES = 128, 16
_SLOT = 22  # bytes a row of keys, scores and digests, which lie in HBM in every mode
_HBM, _HOST = 3.6e6, 5.1e4  # bytes a millisecond, in thousands: a card, and the way to its host
_KEY_MS = 1.2e-6
_LAUNCH_MS = 0.05


def plan_work(seed: int, tables: int) -> tuple[list[TableOptions], Budget]:
    """Tables with 24 variants each on 128 devices of 16 machines; both budgets bind.

    Rows are log-uniform from a million to a billion. Times follow from a power law's hit rates and
    two tiers that overlap, with a little noise as measured times have it.

    >>> tables, budget = plan_work(0, 3)
    >>> [len(table.options) for table in tables]
    [24, 24, 24]
    """
    random = np.random.default_rng(seed)
    made = [_table(random, f"t{index}") for index in range(tables)]
    values = sum(table.options[0].hbm for table in made)
    # Below what all values take together with caches, above what they take without.
    return made, Budget(int(0.4 * values), Fraction(int(5.15 * values), 8))


def _table(random: np.random.Generator, name: str) -> TableOptions:
    rows = int(10 ** random.uniform(6.0, 9.0))
    dim = int(random.choice([8, 16, 32, 64, 128]))
    state = float(random.choice([1 / dim, 1, 2]))
    ids = float(10 ** random.uniform(3.6, 5.7))
    skew = random.uniform(0.05, 0.5)  # 1 less the exponent of the power law
    local = -(-rows // WORLD)
    row = -(-int(dim * 4 * (1 + state)) // 16) * 16
    distinct = min(float(rows), ids * random.uniform(0.3, 0.9))
    moved = dim * 4 + 2 * row
    options = []
    for variant in variants():
        share = float(variant.share)
        hit = {
            Mode.HBM_ONLY: 1.0,
            Mode.HYBRID: share,
            Mode.CACHING: share**skew,
            Mode.HOST_ONLY: 0.0,
        }[variant.mode]
        near = distinct * (_KEY_MS + hit * moved / (_HBM * 1e3))
        far = distinct * (1 - hit) * moved / (_HOST * 1e3)
        tiers = {Mode.HBM_ONLY: 1, Mode.HOST_ONLY: 1}.get(variant.mode, 2)
        noise = random.uniform(0.99, 1.01)
        ms = tiers * _LAUNCH_MS + (near**4 + far**4) ** 0.25 * noise
        kept = int(local * share)
        host = {Mode.HBM_ONLY: 0, Mode.HYBRID: local - kept}.get(variant.mode, local)
        slots = local + (kept if variant.mode == Mode.CACHING else 0)
        options.append(Option(variant.label, kept * row + slots * _SLOT, host * row, ms))
    return TableOptions(name, tuple(options))


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


Peer = Callable[[list[TableOptions], Budget], "tuple[int, ...] | None"]
HIGHS = "plain HiGHS"


@dataclass(frozen=True, slots=True)
class PlanSize:
    """How many tables a problem has, and the grids that try it."""

    tables: int
    grids: tuple[tuple[int, int], ...] = ()
    time_limit: float = 600.0  # a solver is measured until it is done

    @property
    def name(self) -> str:
        """Of the case."""
        return f"{self.tables:,} tables"

    def peers(self) -> dict[str, Peer]:
        """Everyone who tries the same problem."""
        grids: dict[str, Peer] = {f"grid {h}x{d}": grid_peer(h, d) for h, d in self.grids}
        return {HIGHS: plain_highs, **grids}


FULL = (PlanSize(1_000, ((200, 50), (400, 100))), PlanSize(10_000))
QUICK = (PlanSize(60, ((20, 10), (40, 20))), PlanSize(200))


def run(progress: Progress, *, rounds: int = 5, quick: bool = False) -> dict[str, Any]:
    """Every round is another problem; medians over the rounds, and what each solver found."""
    checks.count("rounds", rounds, least=1)
    sizes = QUICK if quick else FULL
    versions = {**Ours.versions(), **_scipy_version()}
    total, done, results = sum((1 + len(size.peers())) * rounds for size in sizes), 0, []

    def on_step(text: str) -> None:
        nonlocal done
        done += 1
        progress(text, done, total)

    for size in sizes:
        results += _case(size, rounds, on_step)
    return {
        "bench": "plan",
        "work": {
            **machine(),
            "threads": 1,
            "rounds": rounds,
            "quick": quick,
            "devices": WORLD,
            "machines": MACHINES,
            "variants": 24,
        },
        "versions": versions,
        "results": results,
    }


def _scipy_version() -> dict[str, str]:
    try:
        import scipy
    except ImportError as error:
        raise MissingExtraError(
            "hedgerow bench plan compares with HiGHS, which comes with scipy; install "
            "hedgerow[plan]."
        ) from error
    return {"scipy": scipy.__version__}


@dataclass(slots=True)
class _Tried:
    """What one solver did with the problems of a case: seconds, and the cost found, if any."""

    seconds: list[float]
    costs: list[int | None]


def _case(size: PlanSize, rounds: int, on_step: Callable[[str], None]) -> list[dict[str, Any]]:
    peers = size.peers()
    tried = {name: _Tried([], []) for name in ("ours", *peers)}
    solutions: list[Solution] = []
    for seed in range(rounds):
        tables, budget = plan_work(seed, size.tables)
        begun = time.perf_counter()
        solutions.append(solve(tables, budget, time_limit=size.time_limit))
        _note(tried["ours"], begun, tables, solutions[-1].choice)
        on_step(f"{size.name}, ours, problem {seed}")
        for name, peer in peers.items():
            begun = time.perf_counter()
            _note(tried[name], begun, tables, peer(tables, budget))
            on_step(f"{size.name}, {name}, problem {seed}")
    ours = tried.pop("ours")
    alone = {"case": size.name, **_ours(ours, solutions)}
    return [alone, *(_against(size.name, name, ours, peer) for name, peer in tried.items())]


def _note(
    tried: _Tried, begun: float, tables: list[TableOptions], choice: tuple[int, ...] | None
) -> None:
    tried.seconds.append(time.perf_counter() - begun)
    tried.costs.append(None if choice is None else cost_of(tables, choice))


def _ours(ours: _Tried, solutions: list[Solution]) -> dict[str, Any]:
    return {
        "ours_ms": _ms(statistics.median(ours.seconds)),
        "worst_ms": _ms(max(ours.seconds)),
        "problems": len(solutions),
        "proven": sum(found.status == "optimal" for found in solutions),
        "both_budgets_bind": sum(
            min(found.prices.hbm_ms_per_byte, found.prices.ddr_ms_per_byte) > 0
            for found in solutions
        ),
    }


def _against(case: str, name: str, ours: _Tried, peer: _Tried) -> dict[str, Any]:
    gaps = [
        None if theirs is None else theirs / mine - 1
        for mine, theirs in zip(ours.costs, peer.costs, strict=True)
        if mine is not None
    ]
    found = [gap for gap in gaps if gap is not None]
    mine, theirs = statistics.median(ours.seconds), statistics.median(peer.seconds)
    result = {
        "case": case,
        "peer": name,
        "ours_ms": _ms(mine),
        "peer_ms": _ms(theirs),
        "ratio": round(theirs / mine, 2),
        "found": len(found),
        "problems": len(gaps),
        "gap": round(statistics.median(found), 5) if found else None,
        "worst_gap": round(max(found), 5) if found else None,
    }
    if name == HIGHS:  # the grids are not exact: they may find more, or nothing
        result["equal"] = ours.costs == peer.costs
    return result


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
