"""`hedgerow bench train`: samples per second of a whole training step, against the same model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from .. import native
from .cases import Case, Stage, choose
from .progress import Counter, Progress
from .report import machine
from .settings import Settings
from .stages import StageRunner
from .train_ours import OurTraining
from .train_work import FULL, QUICK, TrainSizes, make_train_work

PEERS = ("nn.EmbeddingBag(sparse)", "EBC sparse", "EBC fused")


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measures us against every peer that was chosen; one report, in the form of all."""
    sizes = QUICK if settings.quick else FULL
    stages, _ = choose([train_stage(sizes)], settings.cases, settings.peers)
    counter = Counter(progress, stages, settings.rounds)
    before = native.threads(), torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as folder:
            runner = StageRunner(
                settings,
                Path(folder),
                counter,
                make=lambda plan, to: make_train_work(sizes, to),
                ours=OurTraining,
            )
            results = [result for stage in stages for result in runner.stage(stage)]
    finally:
        native.set_threads(before[0])
        torch.set_num_threads(before[1])
    ours = OurTraining.versions()
    return {
        "bench": "train",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": settings.quick,
            "features": sizes.features,
            "rows_a_table": sizes.rows,
            "dim": sizes.dim,
            "samples": sizes.samples,
            "batches": sizes.batches,
        },
        "versions": {**ours, **runner.versions, **ours},  # ours first, and of our environment
        "results": [with_speed(result, sizes.samples) for result in results],
    }


def train_stage(sizes: TrainSizes) -> Stage:
    """The one case."""
    case = Case(
        name=f"DLRM {sizes.features} features",
        operation="train",
        access="clicks",
        output="fresh",
        peers=PEERS,
    )
    return Stage(plan=sizes.plan(), optimizer="adagrad", cases=(case,))


def with_speed(result: dict[str, Any], samples: int) -> dict[str, Any]:
    """Adds samples a second to a result that has times.

    >>> with_speed({"ours_ms": 20.0, "peer_ms": 40.0}, 4_000)["ours_samples_per_s"]
    200000
    """
    if "ours_ms" in result:
        for who in ("ours", "peer"):
            result[f"{who}_samples_per_s"] = round(1e3 * samples / result[f"{who}_ms"])
    return result
