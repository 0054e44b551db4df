"""A run that is killed at any step and goes on ends as if nothing had happened, to the last bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow.train.events import read_events

from .resume_job import write_data

STEPS = 96  # three epochs of 1,000 samples in batches of 32


def _job(data: Path, run: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.train.resume_job", str(data), str(run)])


def _end(run: Path) -> dict[str, Any]:
    return torch.load(run / "end.pt", weights_only=True)


def _log(run: Path) -> list[dict[str, Any]]:
    """All that was measured; how long it took and where files lie may differ."""
    drop = ("seconds", "path")
    return [{k: v for k, v in e.items() if k not in drop} for e in read_events(run / "log.jsonl")]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The data, and a run over it that nobody disturbed."""
    folder = tmp_path_factory.mktemp("unbroken")
    data, run = folder / "data", folder / "run"
    for path in (data, run):
        path.mkdir()
    write_data(data)
    assert _job(data, run).wait() == 0
    return data, run


def _wait_for_step(run: Path, step: int, job: subprocess.Popen[bytes]) -> None:
    while job.poll() is None:
        log = run / "log.jsonl"
        if log.exists() and any(int(e["step"]) >= step for e in read_events(log)):
            return
        time.sleep(0.002)


def _stopped_and_resumed(data: Path, run: Path, steps: list[int], number: int) -> list[int]:
    """Exit codes of a job that is sent a signal at each of these steps, then left alone."""
    run.mkdir()
    codes = []
    for step in steps:
        job = _job(data, run)
        _wait_for_step(run, step, job)
        job.send_signal(number)
        codes.append(job.wait())
    codes.append(_job(data, run).wait())
    return codes


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 9))]
)
def test_kills_change_nothing(unbroken: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    data, whole = unbroken
    steps = sorted(random.Random(seed).sample(range(1, STEPS - 10), 2))
    codes = _stopped_and_resumed(data, tmp_path / "run", steps, signal.SIGKILL)
    assert codes[-1] == 0, codes
    _same_end(whole, tmp_path / "run")


def test_an_interruption_saves_says_so_and_changes_nothing(
    unbroken: tuple[Path, Path], tmp_path: Path
) -> None:
    data, whole = unbroken
    run = tmp_path / "run"
    run.mkdir()
    job = _job(data, run)
    _wait_for_step(run, 30, job)
    job.send_signal(signal.SIGINT)
    assert job.wait() == 0
    assert _end(run)["why"] == "interrupted"
    stopped = read_events(run / "log.jsonl")[-1]
    assert stopped["kind"] == "end"
    assert stopped["why"] == "interrupted"
    assert (run / "checkpoints" / f"step-{stopped['step']:09d}" / "manifest.json").exists()
    assert _job(data, run).wait() == 0
    _same_end(whole, run, checkpoints=False)


def _same_end(whole: Path, run: Path, *, checkpoints: bool = True) -> None:
    one, two = _end(whole), _end(run)
    assert one["why"] == two["why"] == "done"
    assert set(one["state"]) == set(two["state"])
    for name, value in one["state"].items():
        assert torch.equal(value, two["state"][name]), name
    told = [[e for e in _log(r) if checkpoints or e["kind"] != "checkpoint"] for r in (whole, run)]
    assert told[0] == told[1]
    assert told[0][-1]["step"] == STEPS
