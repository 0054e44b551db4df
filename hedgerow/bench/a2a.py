"""`hedgerow bench a2a`: whole training steps over two processes, against others' exchanges."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from .. import native
from .a2a_ours import OurPair
from .a2a_overlap import measure_overlap
from .cases import Case, Stage, choose
from .peers.pair import RANKS
from .progress import Counter, Progress
from .report import machine
from .settings import Settings
from .stages import StageRunner
from .train import with_speed
from .train_work import TrainSizes, make_train_work

PEERS = ("EBC row-wise", "torch all-to-all", "torch all-to-all, unique")
FULL = TrainSizes(features=26, rows=200_000, dim=32, samples=8_192, batches=12)
QUICK = TrainSizes(features=26, rows=5_000, dim=32, samples=256, batches=4)


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measures us against every peer that was chosen, and what reading ahead hides."""
    sizes = QUICK if settings.quick else FULL
    stages, _ = choose([_stage(sizes)], settings.cases, settings.peers)
    counter = Counter(progress, stages, settings.rounds)
    versions, results = _against_peers(settings, sizes, stages, counter)
    counter.say("overlap")
    return {
        "bench": "a2a",
        "work": {
            **machine(),
            "processes": RANKS,
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": settings.quick,
            "features": sizes.features,
            "rows_a_table": sizes.rows,
            "dim": sizes.dim,
            "samples": sizes.samples,
            "batches": sizes.batches,
        },
        "versions": versions,
        "results": [*results, measure_overlap(RANKS)],
    }


def _against_peers(
    settings: Settings, sizes: TrainSizes, stages: list[Stage], counter: Counter
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    before = native.threads(), torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as folder:
            runner = StageRunner(
                settings,
                Path(folder),
                counter,
                make=lambda plan, to: make_train_work(sizes, to),
                ours=OurPair,
            )
            results = [result for stage in stages for result in runner.stage(stage)]
    finally:
        native.set_threads(before[0])
        torch.set_num_threads(before[1])
    ours = OurPair.versions()
    speeds = [with_speed(result, sizes.samples) for result in results]
    return {**ours, **runner.versions, **ours}, speeds


def _stage(sizes: TrainSizes) -> Stage:
    case = Case(
        name=f"DLRM {sizes.features} features, {RANKS} processes",
        operation="train",
        access="clicks",
        output="fresh",
        peers=PEERS,
    )
    return Stage(plan=sizes.plan(), optimizer="adagrad", cases=(case,))
