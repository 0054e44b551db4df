"""The number of torch's threads is measured without a trace, kept for --resume, and said."""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow.nn.model_tables import tables_of
from hedgerow.train.job import Job, job_of
from hedgerow.train.job_parts import build_model, choose, threads_for


@pytest.mark.parametrize(
    ("times_ms", "chosen"),
    [
        ({8: 10, 1: 1, 4: 5}, 1),
        ({8: 10, 1: 9, 4: 5}, 4),
        ({8: 10, 1: 9, 4: 7}, 8),  # too little for a choice that noise could turn
        ({2: 3, 1: 1}, 1),
        ({1: 1}, 1),
    ],
)
def test_fewer_threads_are_taken_where_they_gain_much(
    times_ms: dict[int, float], chosen: int, caplog: pytest.LogCaptureFixture
) -> None:
    default = max(times_ms)
    with caplog.at_level(logging.INFO, "hedgerow"):
        assert choose(default, lambda threads: times_ms[threads] / 1e3) == chosen
    assert (f"torch takes {chosen} of {default} threads" in caplog.text) == (default > 1)


def _job(name: str) -> Job:
    return job_of({"data": {"source": "clicks", "batch_size": 64}, "model": {"name": name}})


@pytest.mark.parametrize("name", ["deepfm", "dlrm", "two-tower"])
def test_measuring_changes_nothing(name: str) -> None:
    if name == "two-tower":
        job = job_of({"data": {"source": "clicks"}, "model": {"name": name, "items": ["item"]}})
    else:
        job = _job(name)
    model = build_model(job)
    weights: dict[str, Any] = copy.deepcopy(dict(model.named_parameters()))
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert threads_for(job, model) in (1, 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(table.size() == 0 for table in tables_of(model).values())
    assert all(torch.equal(weights[name], now) for name, now in model.named_parameters())
    assert all(weight.grad is None for weight in model.parameters())


def test_a_run_says_its_threads_and_goes_on_with_them(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[data]\nsource = "clicks"\nbatch_size = 16\nsteps = 4\n')
    run = tmp_path / "run"
    train = [sys.executable, "-m", "hedgerow", "train", str(tmp_path / "job.toml"), "--out"]
    told = []
    for more in (["--steps", "2"], ["--resume"]):
        done = subprocess.run(
            [*train, str(run), *more],
            env={"OMP_NUM_THREADS": "2", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr
        told.append((done.stderr, json.loads((run / "job.json").read_text())["train"]["threads"]))
    assert "INFO torch takes " in told[0][0]
    assert told[0][1] in (1, 2)
    assert told[1][1] == told[0][1]
    assert "torch takes" not in told[1][0]
    assert f"{told[1][1]} threads" in told[1][0]
