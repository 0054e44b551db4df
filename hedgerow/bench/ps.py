"""`hedgerow bench ps`: Monolith's benchmark, and the way to servers against other ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .progress import Progress
from .ps_monolith import IDS, SERVERS, run_monolith, small_lookups
from .ps_transports import measure_transports
from .report import machine
from .settings import Settings

_SMALL_SERVERS = 4
_QUICK_IDS = 20_000


def run(settings: Settings, progress: Progress, profile: Path | None) -> dict[str, Any]:
    """All parts; one report."""
    versions, results = measure_transports(settings, progress)
    if not settings.cases and not settings.peers:
        results = [*results, *_monolith(settings, progress, profile)]
        results += small_lookups(_SMALL_SERVERS, 50 if settings.quick else 500)
    return _report(settings, versions, results)


def run_monolith_alone(
    settings: Settings, progress: Progress, profile: Path | None
) -> dict[str, Any]:
    """Monolith's benchmark and nothing else."""
    return _report(settings, {}, _monolith(settings, progress, profile))


def _monolith(settings: Settings, progress: Progress, profile: Path | None) -> list[dict[str, Any]]:
    ids = _QUICK_IDS if settings.quick else IDS
    return run_monolith(SERVERS, ids, settings.rounds, profile, progress)


def _report(
    settings: Settings, versions: dict[str, Any], results: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "bench": "ps",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": settings.quick,
        },
        "versions": versions,
        "results": results,
    }
