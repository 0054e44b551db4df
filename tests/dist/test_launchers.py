"""The same script under python, torchrun, `hedgerow launch` and mpirun; and when a process dies."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .launched import finish, mpirun, start_plain

SCRIPT = Path(__file__).parent / "job_script.py"
LIMIT_S = 30  # for every other process to end after one died
TOTAL = "total 66.0"
pytestmark = pytest.mark.xdist_group("processes")  # one after the other: they fill the machine


def _infos(folder: Path) -> list[tuple[int, int, int, int, str]]:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    names = ("rank", "local_rank", "world_size", "local_world_size", "launcher")
    return [tuple(info[name] for name in names) for info in found]


def test_under_python(tmp_path: Path) -> None:
    done = finish([sys.executable, SCRIPT, tmp_path])
    assert (done.returncode, done.stdout.split("\n")[0]) == (0, TOTAL), done.stderr
    assert _infos(tmp_path) == [(0, 0, 1, 1, "none")]


def test_under_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = finish([*torchrun, "--nproc-per-node", "3", SCRIPT, tmp_path])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count(TOTAL) == 1
    assert _infos(tmp_path) == [(rank, rank, 3, 3, "torchrun") for rank in range(3)]


def test_under_mpirun(tmp_path: Path) -> None:
    done = finish([mpirun(), "-n", "3", sys.executable, SCRIPT, tmp_path])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count(TOTAL) == 1
    assert _infos(tmp_path) == [(rank, rank, 3, 3, "ompi") for rank in range(3)]


def _seconds_since_the_kill(folder: Path) -> float:
    return time.monotonic() - float((folder / "killed").read_text())


def test_a_killed_process_ends_all_others_with_an_error(tmp_path: Path) -> None:
    """Without a launcher that ends them, and not all of them talk to the dead one directly."""
    jobs = start_plain(SCRIPT, 4, str(tmp_path), "--kill", "2")
    try:
        told = [job.communicate(timeout=200)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert _seconds_since_the_kill(tmp_path) < LIMIT_S
    codes = [job.returncode for job in jobs]
    assert codes.pop(2) == -9
    assert all(code > 0 for code in codes), codes
    errors = [text for rank, text in enumerate(told) if rank != 2]
    assert all("Error" in text and "peer" in text for text in errors), errors


@pytest.mark.parametrize("launcher", ["hedgerow", "mpirun"])
def test_a_killed_process_ends_the_job(launcher: str, tmp_path: Path) -> None:
    start = (
        [sys.executable, "-m", "hedgerow", "launch", "--nproc", "2"]
        if launcher == "hedgerow"
        else [mpirun(), "-n", "2", sys.executable]
    )
    done: subprocess.CompletedProcess[str] = finish([*start, SCRIPT, tmp_path, "--kill", "1"])
    assert _seconds_since_the_kill(tmp_path) < LIMIT_S
    assert done.returncode not in (0, None)
    assert TOTAL not in done.stdout
