"""Parts of the report that no single measurement gives."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from .. import native
from .cases import GROWTH


def machine() -> dict[str, Any]:
    """What the numbers were taken on.

    >>> machine()["isa"] in native.isas()
    True
    """
    return {"cpu": _cpu(), "cpus": os.cpu_count(), "isa": native.isa()}


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def growth_factors(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds the cost of an id to the growth cases, and how much dearer it is than in the smallest.

    >>> rows = [{"case": "growth", "ids": 10, "ours_ms": t, "peer_ms": 2.0} for t in (1.0, 3.0)]
    >>> [row["ours_growth"] for row in growth_factors(rows)]
    [1.0, 3.0]
    """
    measured = [r for r in results if r["case"] == GROWTH and "ours_ms" in r]
    for result in measured:
        for who in ("ours", "peer"):
            spent_ms = result[f"{who}_ms"]
            result[f"{who}_ns_per_id"] = round(1e6 * spent_ms / result["ids"], 2)
            result[f"{who}_growth"] = round(spent_ms / measured[0][f"{who}_ms"], 3)
    return results
