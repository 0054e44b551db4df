"""The way to servers and back: ours against others, with the same tables behind all."""

from __future__ import annotations

from typing import Any

from .cases import Case, Stage, choose
from .progress import Counter, Progress
from .ps_peers.ours import OurServers
from .settings import Settings
from .stages import run_stages
from .work import WorkPlan

OTHERS = ("grpcio stream", "grpcio unary", "torch.rpc", "Ray actors", "plain sockets")
OWN = ("with CURVE",)
PUSHED = ("with CURVE", "with the log")


def transport_stages(*, quick: bool) -> list[Stage]:
    """A large lookup, many small ones, and a push."""
    rows = 20_000 if quick else 1_000_000
    large = WorkPlan(
        name="servers", rows=rows, dim=16, accesses=("inserts",), batch_ids=rows, random_ids=False
    )
    small = WorkPlan(
        name="servers small",
        rows=rows,
        dim=16,
        accesses=("uniform",),
        batch_ids=1_000,
        batches=20 if quick else 300,
        random_ids=False,
    )
    return [
        _stage(large, f"lookup of {rows:,} ids", "lookup", OTHERS + OWN),
        _stage(small, "lookup of 1,000 ids", "lookup", OTHERS + OWN),
        _stage(large, f"push of {rows:,} ids", "update", PUSHED),
    ]


def _stage(plan: WorkPlan, name: str, operation: str, peers: tuple[str, ...]) -> Stage:
    (access,) = plan.accesses
    case = Case(name=name, operation=operation, access=access, output="reused", peers=peers)
    return Stage(plan=plan, optimizer="sgd", cases=(case,))


def measure_transports(
    settings: Settings, progress: Progress
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Versions and results of all cases that were chosen."""
    stages, _ = choose(transport_stages(quick=settings.quick), settings.cases, settings.peers)
    counter = Counter(progress, stages, settings.rounds)
    return run_stages(settings, stages, counter, ours=OurServers)
