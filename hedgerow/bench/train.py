"""`hedgerow bench train`: samples per second of a whole training step, against the same model."""

from __future__ import annotations

from typing import Any

from .cases import Case, Stage, choose
from .peers.subject import Subject
from .progress import Counter, Progress
from .report import machine
from .settings import Settings
from .stages import run_stages
from .train_ours import OurTraining
from .train_work import FULL, QUICK, TrainSizes, make_train_work

PEERS = ("nn.EmbeddingBag(sparse)", "EBC sparse", "EBC fused")


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measures us against every peer that was chosen; one report, in the form of all."""
    sizes = QUICK if settings.quick else FULL
    stage = train_stage(f"DLRM {sizes.features} features", sizes, PEERS)
    return training_report("train", settings, progress, stage, sizes, OurTraining)


def training_report(
    bench: str,
    settings: Settings,
    progress: Progress,
    stage: Stage,
    sizes: TrainSizes,
    ours: type[Subject],
) -> dict[str, Any]:
    """One stage of whole training steps, with its sizes and speeds."""
    stages, _ = choose([stage], settings.cases, settings.peers)
    counter = Counter(progress, stages, settings.rounds)
    versions, results = run_stages(
        settings, stages, counter, make=lambda plan, to: make_train_work(sizes, to), ours=ours
    )
    return {
        "bench": bench,
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
        "versions": versions,
        "results": [with_speed(result, sizes.samples) for result in results],
    }


def train_stage(name: str, sizes: TrainSizes, peers: tuple[str, ...]) -> Stage:
    """The one case."""
    case = Case(name=name, operation="train", access="clicks", output="fresh", peers=peers)
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
