"""The way to servers and back: ours against others, with the same tables behind all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from .. import native
from .cases import Case, Stage, choose
from .peers.workfile import Work
from .progress import Counter, Progress
from .ps_peers.asked import Asked
from .ps_peers.ours import OurServers
from .settings import Settings
from .stages import StageRunner
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
    many, few = f"lookup of {rows:,} ids", "lookup of 1,000 ids"
    return [
        _stage(
            large,
            Case(
                name=many, operation="lookup", access="inserts", output="reused", peers=OTHERS + OWN
            ),
        ),
        _stage(
            small,
            Case(
                name=few, operation="lookup", access="uniform", output="reused", peers=OTHERS + OWN
            ),
        ),
        _stage(
            large,
            Case(
                name=f"push of {rows:,} ids",
                operation="update",
                access="inserts",
                output="reused",
                peers=PUSHED,
            ),
        ),
    ]


def _stage(plan: WorkPlan, case: Case) -> Stage:
    return Stage(plan=plan, optimizer="sgd", cases=(case,))


def measure_transports(
    settings: Settings, progress: Progress
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Versions and results of all cases that were chosen."""
    stages, _ = choose(transport_stages(quick=settings.quick), settings.cases, settings.peers)
    counter = Counter(progress, stages, settings.rounds)
    before = native.threads(), torch.get_num_threads()
    results: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    try:
        for stage in stages:
            made: list[Asked] = []

            class Ours(OurServers):
                """Remembered, to be ended."""

                def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
                    super().__init__(work, threads, optimizer)
                    made.append(self)

            with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as folder:
                runner = StageRunner(settings, Path(folder), counter, ours=Ours)
                try:
                    results += list(runner.stage(stage))
                finally:
                    for one in made:
                        one.leave()
                versions |= runner.versions
    finally:
        native.set_threads(before[0])
        torch.set_num_threads(before[1])
    return versions, results
