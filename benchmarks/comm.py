"""`hedgerow bench comm`: what the processes of this machine can exchange."""

from __future__ import annotations

import io
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hedgerow.core.errors import InputError, LaunchError
from hedgerow.launch.process_group import group_settings, process_group
from hedgerow.launch.torchrun import command
from hedgerow.monolith.launch.comm_bench import (
    LEAST_ITERATIONS,
    Windows,
    bus_factor,
    measure_a2a,
    measure_ar,
    sent_elements,
)
from hedgerow.monolith.launch.transports import TorchTransport

from . import CHECKOUT
from .ours import Ours
from .rounds import machine

_HALVINGS = 3


def run(nproc: int, iterations: int, length: int, timeout_s: float) -> dict[str, Any]:
    """Starts the processes, waits for them, and reports in the form of all our benchmarks."""
    if nproc < 1:
        raise InputError(f"nproc is {nproc}; it must be at least 1.")
    if iterations < LEAST_ITERATIONS:
        raise InputError(f"iterations is {iterations}; it must be at least {LEAST_ITERATIONS}.")
    shortest = sent_elements("c2c", length) / 2 ** (_HALVINGS - 1) / nproc
    if length < 1 or shortest % 1:
        unit = 8 * 2 ** (_HALVINGS - 1) * nproc
        raise InputError(f"length is {length}; {nproc} processes need a multiple of {unit}.")
    return {
        "bench": "comm",
        "work": {**machine(), "processes": nproc, "iterations": iterations, "length": length},
        "versions": Ours.versions(),
        "results": _results(nproc, iterations, length, timeout_s),
    }


def _results(nproc: int, iterations: int, length: int, timeout_s: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "results.json")
        lengths = [str(length // 2**i) for i in range(_HALVINGS)]
        target = ["benchmarks.comm", str(out), str(iterations), *lengths]
        try:
            done = subprocess.run(
                command(nproc, target, module=True),
                cwd=CHECKOUT,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            late = f"no result after {timeout_s} s; give it more: --timeout-s."
            raise LaunchError(late) from error
        if done.returncode or not out.exists():
            told = done.stderr[-2000:]
            raise LaunchError(f"a process failed with status {done.returncode}: {told}")
        return json.loads(out.read_text())


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
