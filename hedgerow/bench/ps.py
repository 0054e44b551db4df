"""`hedgerow bench ps`: the original's benchmark, and the way to servers against other ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .progress import Progress
from .ps_original import run_original, small_lookups
from .ps_transports import measure_transports
from .report import machine
from .settings import Settings

_SERVERS, _SMALL_SERVERS = 10, 4


def run(settings: Settings, progress: Progress, profile: Path | None) -> dict[str, Any]:
    """All parts; one report."""
    quick = settings.quick
    versions, results = measure_transports(settings, progress)
    alone: list[dict[str, Any]] = []
    if not settings.cases and not settings.peers:
        progress(f"the original's benchmark on {_SERVERS} servers", 0, 1)
        ids = 20_000 if quick else 1_000_000
        alone += run_original(_SERVERS, ids, settings.rounds, profile)
        alone += small_lookups(_SMALL_SERVERS, 50 if quick else 500)
    return {
        "bench": "ps",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": quick,
        },
        "versions": versions,
        "results": [*results, *alone],
    }
