"""`hedgerow bench plan`: the exact choice against plain HiGHS and the published planner's grid."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core import checks
from ..core.errors import MissingExtraError
from ..planner.problem.option import TableOptions
from ..planner.problem.solution import Solution
from ..planner.problem.topology import Budget
from ..planner.solver.solve import solve
from .ours import Ours
from .plan_peers import cost_of, grid_peer, plain_highs
from .plan_work import MACHINES, WORLD, plan_work
from .progress import Progress
from .report import machine

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
