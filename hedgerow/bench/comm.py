"""`hedgerow bench comm`: what the processes of this machine can exchange."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ..core.errors import InputError, LaunchError
from ..launch.torchrun import command
from ..launch.windows import LEAST_ITERATIONS, sent_elements
from .ours import Ours
from .report import machine

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
        target = ["hedgerow.bench.comm_process", str(out), str(iterations), *lengths]
        try:
            done = subprocess.run(
                command(nproc, target, module=True),
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
