"""`hedgerow bench a2a`: whole training steps over two processes, against others' exchanges."""

from __future__ import annotations

from typing import Any

from .a2a_ours import OurPair
from .a2a_overlap import measure_overlap
from .peers.pair import RANKS
from .progress import Progress
from .settings import Settings
from .train import train_stage, training_report
from .train_work import TrainSizes

PEERS = ("EBC row-wise", "torch all-to-all", "torch all-to-all, unique")
FULL = TrainSizes(features=26, rows=200_000, dim=32, samples=8_192, batches=12)
QUICK = TrainSizes(features=26, rows=5_000, dim=32, samples=256, batches=4)


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measures us against every peer that was chosen, and what reading ahead hides."""
    sizes = QUICK if settings.quick else FULL
    stage = train_stage(f"DLRM {sizes.features} features, {RANKS} processes", sizes, PEERS)
    report = training_report("a2a", settings, progress, stage, sizes, OurPair)
    report["work"]["processes"] = RANKS
    progress("overlap", 0, 1)
    report["results"].append(measure_overlap(RANKS))
    return report
