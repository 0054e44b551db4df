"""`hedgerow bench ops`: every fused op against the straightforward chain of torch's ops."""

from __future__ import annotations

import re
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from hedgerow.core.checks import unknown
from hedgerow.core.errors import InputError

from .ops_cases import CASES
from .ops_duel import FULL, QUICK, Duel, against_chain, against_one_thread, threads
from .ours import Ours
from .rounds import Progress, Settings, machine

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


def run(settings: Settings, progress: Progress, profile: Path | None = None) -> dict[str, Any]:
    """Measures all cases, or those of `settings`; one report, in the form of all our benchmarks.

    With `profile` each case is called once more after its rounds, and its trace written there.
    """
    names, rounds = _chosen(settings.cases), settings.rounds
    if profile is not None:
        clear(profile)
    done, total = 0, len(names) * (1 + (settings.threads > 1)) * (rounds + 1)  # one to warm up

    def on_round(text: str) -> None:
        nonlocal done
        done += 1
        progress(text, done, total)

    results: list[dict[str, Any]] = []
    for name in names:
        progress(f"making {name}", done, total)
        duel = CASES[name](QUICK if settings.quick else FULL)
        results.append(against_chain(name, duel, rounds, on_round))
        if settings.threads > 1:
            results.append(against_one_thread(name, duel, settings.threads, rounds, on_round))
        if profile is not None:
            with threads(settings.threads):
                results[-1]["trace"] = str(trace(profile, name, duel, settings.threads > 1))
    return {
        "bench": "ops",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": rounds,
            "quick": settings.quick,
        },
        "versions": Ours.versions(),
        "results": results,
    }


def _chosen(patterns: tuple[str, ...]) -> list[str]:
    """Names that fit a pattern, in order; all if there is none.

    >>> _chosen(("reduce*",))
    ['reduce and split']
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in CASES):
            unknown("case", pattern, CASES)
    return [n for n in CASES if not patterns or any(fnmatchcase(n, p) for p in patterns)]
