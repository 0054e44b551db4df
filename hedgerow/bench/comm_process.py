"""One process of `hedgerow bench comm`: `python -m ... RESULTS ITERATIONS LENGTH...`."""

from __future__ import annotations

import io
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from ..launch.comm_bench import measure_a2a, measure_ar
from ..launch.process_group import group_settings, process_group
from ..launch.transports import TorchTransport
from ..launch.windows import Windows, bus_factor


def main(out: Path, iterations: int, lengths: list[int]) -> None:
    """Measures; rank 0 writes the results."""
    with process_group(settings=group_settings("gloo")) as info:
        carrier, quiet = TorchTransport(), io.StringIO()
        results = [_row("ar", n, measure_ar(n, iterations, True, quiet, carrier)) for n in lengths]
        results += [
            _row("c2c", n, measure_a2a(n, iterations, "c2c", quiet, carrier)) for n in lengths
        ]
        for row in results:
            row["bus_gbps"] = row["goodput_gbps"] * bus_factor(row["case"], info.world_size)
        if info.rank == 0:
            out.write_text(json.dumps(results))


def _row(case: str, length: int, run: Windows) -> dict[str, Any]:
    return {
        "case": case,
        "length": length,
        "sent": int(run.elements),
        "windows": len(run.kept),
        "latency_ms": run.kept_latency_ms,
        "goodput_gbps": statistics.fmean(run.kept),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [int(text) for text in sys.argv[3:]])
