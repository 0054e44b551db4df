"""What tests of real processes share: a script under each launcher, waited for with a limit."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NOT_OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# mpirun refuses to run as root, and more processes than cores, unless told.
MPI_HERE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def environ(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    return clean | MPI_HERE | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | more


def finish(command: Sequence[str | Path], **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, or fails after four minutes."""
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env=environ(**more),
        timeout=240,
    )


def start_plain(script: Path, size: int, *args: str) -> list[subprocess.Popen[str]]:
    """A script in `size` processes, as `start_processes` does."""
    return start_processes([sys.executable, str(script), *args], size)


def start_processes(command: Sequence[str], size: int) -> list[subprocess.Popen[str]]:
    """`size` processes without a launcher that would end the others when one dies."""
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        port = asking.getsockname()[1]
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            list(command),
            env=environ(RANK=str(rank), **common),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


def mpirun() -> str:
    found = shutil.which("mpirun")
    if found is None:
        pytest.skip("NO MPIRUN HERE (make ci-deps installs it): jobs under mpirun are not tested")
    return found
