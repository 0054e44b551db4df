"""`hedgerow bench checkpoint`: what saving and loading cost beside the least they could."""

from __future__ import annotations

import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import native
from ..core.errors import InputError
from .checkpoint_cases import CASES, load_case, lookups_case, save_case
from .checkpoint_work import FULL, QUICK, CheckpointWork
from .ours import Ours
from .progress import Progress, counted
from .report import machine
from .settings import Settings


def run(settings: Settings, progress: Progress, folder: Path | None = None) -> dict[str, Any]:
    """Measures all cases, with files in a new folder in `folder` (that for temporary files if
    None), which is removed in the end; one report, in the form all our benchmarks have.
    """
    if folder is not None and not folder.is_dir():
        raise InputError(
            f"folder is {folder}, which is no folder; name one on the disk to measure."
        )
    sizes, rounds = QUICK if settings.quick else FULL, settings.rounds
    total = len(CASES) * (rounds + 1)  # one to warm up
    on_round = counted(progress, total)
    progress("making rows", 0, total)
    before = native.threads()
    native.set_threads(settings.threads)
    try:
        work = CheckpointWork.make(sizes)
        with tempfile.TemporaryDirectory(prefix="hedgerow-bench-", dir=folder) as made:
            here = Path(made)
            results = [
                save_case(work, here, rounds, on_round),
                load_case(work, here, rounds, on_round),
                *lookups_case(work, here, rounds, on_round),
            ]
    finally:
        native.set_threads(before)
    return {
        "bench": "checkpoint",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": rounds,
            "quick": settings.quick,
            **sizes.summary(),
        },
        "versions": {**Ours.versions(), "pyarrow": metadata.version("pyarrow")},
        "results": results,
    }
