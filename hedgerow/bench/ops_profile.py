"""Traces of torch's profiler: one call of each case, and nothing else."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import torch

from ..core.errors import InputError
from .ops_duel import Duel

_ENDING = ".trace.json"


def default_folder() -> Path:
    """Where traces go if no folder is named."""
    return Path(tempfile.gettempdir()) / "distribution_ops_benchmark"


def clear(folder: Path) -> None:
    """Makes the folder and removes traces of an earlier run; other files stay."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"profile is {folder}, which is no folder; name one for the traces.")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"*{_ENDING}"):
        old.unlink()


def trace(folder: Path, case: str, duel: Duel, many: bool) -> Path:
    """Writes the trace of one call of ours. Rounds that warm up or are timed are not in it."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with (
        torch.profiler.profile(activities=kinds, record_shapes=True) as profiler,
        torch.profiler.record_function(case),
    ):
        duel.ours(many)
    path = folder / (re.sub(r"[^A-Za-z0-9]+", "_", case).strip("_") + _ENDING)
    profiler.export_chrome_trace(str(path))
    return path
