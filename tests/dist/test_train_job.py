"""`hedgerow train` on many processes learns, tells, saves and ends as on one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from . import train_work as work
from .launched import environ, finish, mpirun, start_processes
from .pool import Pool

pytestmark = pytest.mark.xdist_group("distribute")
LIMIT_S = 30  # for every other rank to end after one died
MODULE = ("-m", "hedgerow", "train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("train-job")


@pytest.fixture(scope="module")
def job(folder: Path) -> Path:
    return work.write_job(folder)


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Pool]:
    made = Pool(3, folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def one(job: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The run of one process, and its report."""
    said = work.hedgerow("train", job, "--out", folder / "one", "--compare", "--json")
    return folder / "one", json.loads(said)


def _same(whole: Path, other: Path) -> None:
    """Logs and rows agree up to the order of float sums; what was told how often, exactly."""
    kinds = ("train", "eval", "end")
    told = [[e for e in work.events(run) if e["kind"] in kinds] for run in (whole, other)]
    assert len(told[0]) == len(told[1]) > 3
    for left, right in zip(*told, strict=True):
        for name in ("kind", "step", "epoch", "samples", "rows"):
            assert left[name] == right[name], (name, left, right)
        for name in ("loss", "ne", "calibration"):
            assert right[name] == pytest.approx(left[name], rel=1e-4, nan_ok=True)
        assert right["auc"] == pytest.approx(left["auc"], abs=1e-3, nan_ok=True)
    mine, theirs = work.rows(whole), work.rows(other)
    for name, table in mine.items():
        assert set(table) == set(theirs[name])
        for key, row in table.items():
            torch.testing.assert_close(theirs[name][key], row, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_ranks_learn_and_tell_what_one_process_does(
    pool: Pool, job: Path, folder: Path, one: tuple[Path, dict[str, Any]], ranks: int
) -> None:
    out = folder / f"ranks-{ranks}"
    said = pool.run(ranks, work.hedgerow, "train", job, "--out", out, "--compare", "--json")
    assert said[1:] == [""] * (ranks - 1)
    report = json.loads(said[0])
    whole, expected = one
    assert (report["why"], report["step"], report["samples"]) == ("done", work.STEPS, 660)
    assert report["test"]["loss"] == pytest.approx(expected["test"]["loss"], rel=1e-4)
    hashed = [found["baselines"]["hashed table"]["loss"] for found in (report, expected)]
    assert hashed[0] == pytest.approx(hashed[1], rel=1e-3)
    _same(whole, out)
    assert len(list((out / "tensorboard").iterdir())) == 1
    kept = [sorted(p.name for p in (run / "checkpoints").iterdir()) for run in (whole, out)]
    assert kept[0] == kept[1]


def test_all_ranks_take_the_folder_that_the_first_one_finds_free(pool: Pool, job: Path) -> None:
    for number in ("", "-2"):
        said = pool.run(2, work.in_folder, job.parent, "train", job, "--steps", "1", "--json")
        assert json.loads(said[0])["run"] == f"runs/job{number}"


@pytest.mark.parametrize(("saved_by", "ranks"), [(1, 3), (2, 1), (3, 2), (2, 2)])
def test_a_run_goes_on_with_any_number_of_ranks(
    pool: Pool, job: Path, folder: Path, one: tuple[Path, Any], saved_by: int, ranks: int
) -> None:
    """It stops inside an epoch, and between two lines of the log."""
    out = folder / f"from-{saved_by}-to-{ranks}"
    for count, more in ((saved_by, (job, "--steps", "8")), (ranks, ("--resume", "--steps", "99"))):
        arguments = ("train", *more, "--out", out)
        if count == 1:
            work.hedgerow(*arguments)
        else:
            pool.run(count, work.hedgerow, *arguments)
    _same_but_for_the_stop(one[0], out)


def _same_but_for_the_stop(whole: Path, run: Path) -> None:
    assert [e["step"] for e in work.events(run) if e["kind"] == "train"] == [5, 10, 15, 20]
    _same(whole, run)


def test_one_rank_that_is_interrupted_stops_all(
    pool: Pool, job: Path, folder: Path, one: tuple[Path, Any]
) -> None:
    """And as many ranks as before end with the same bits as ranks that nobody disturbed."""
    out, whole = folder / "interrupted", folder / "undisturbed"
    said = pool.run(2, work.one_rank_interrupted, 1, 8, "train", job, "--out", out)
    assert "go on with:  hedgerow train --resume" in said[0]
    assert said[1] == ""
    last = work.events(out)[-1]
    assert (last["kind"], last["why"], last["step"]) == ("end", "interrupted", 8)
    pool.run(2, work.hedgerow, "train", "--resume", "--out", out)
    _same_but_for_the_stop(one[0], out)
    pool.run(2, work.hedgerow, "train", job, "--out", whole)
    mine, theirs = work.rows(whole), work.rows(out)
    for name, table in mine.items():
        assert all(torch.equal(row, theirs[name][key]) for key, row in table.items())


def _wait_for_step(run: Path, step: int, jobs: list[subprocess.Popen[str]]) -> None:
    """Until the log tells of a step."""
    deadline = time.monotonic() + 200
    while not ((run / "log.jsonl").exists() and any(e["step"] >= step for e in work.events(run))):
        assert all(job.poll() is None for job in jobs), [j.communicate() for j in jobs]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test has started; none is left behind."""
    jobs: list[subprocess.Popen[str]] = []
    yield jobs
    for job in jobs:
        job.kill()
        job.communicate()


def _ends_as_unbroken(job: Path, run: Path, folder: Path) -> None:
    """Goes on in this process, and compares with a run that nobody disturbed."""
    newest = max(int(path.name[5:]) for path in (run / "checkpoints").iterdir())
    steps = newest + 6
    work.hedgerow("train", "--resume", "--out", run, "--steps", steps)
    whole = folder / f"whole-{run.name}"
    work.hedgerow("train", job, "--epochs", 1000, "--steps", steps, "--out", whole)
    last = [[e for e in work.events(one) if e["kind"] == "train"][-1] for one in (whole, run)]
    assert last[0]["step"] == last[1]["step"]
    assert last[1]["loss"] == pytest.approx(last[0]["loss"], rel=1e-3)
    assert {name: set(table) for name, table in work.rows(whole).items()} == {
        name: set(table) for name, table in work.rows(run).items()
    }


def test_a_killed_rank_ends_the_job_and_its_run_goes_on(
    job: Path, folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    out = folder / "killed"
    arguments = (*MODULE, str(job), "--epochs", "1000", "--out", str(out))
    started += start_processes([sys.executable, *arguments], 2)
    _wait_for_step(out, 15, started)
    started[1].kill()
    began = time.monotonic()
    told = started[0].communicate(timeout=LIMIT_S)[0]
    assert time.monotonic() - began < LIMIT_S
    assert started[0].returncode > 0
    assert "rror" in told
    _ends_as_unbroken(job, out, folder)


FAILS = """
import os
from hedgerow.cli.app import main
from hedgerow.core.errors import NotFiniteError
from hedgerow.train.run_ranks import RunRanks

share, seen = RunRanks.share, []

def fails(self, batch):
    seen.append(1)
    if len(seen) == 5 and os.environ["RANK"] == "1":
        raise NotFiniteError("a logit is nan")
    return share(self, batch)

RunRanks.share = fails
main()
"""


def test_a_rank_that_fails_ends_the_job(
    job: Path, folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    command = [sys.executable, "-c", FAILS, "train", str(job), "--out", str(folder / "failed")]
    started += start_processes(command, 2)
    told = [one.communicate(timeout=120)[0] for one in started]
    assert [one.returncode > 0 for one in started] == [True, True]
    assert "hedgerow: a logit is nan" in told[1]
    assert "a logit is nan" not in told[0]
    assert "rror" in told[0]


def test_ctrl_c_under_a_launcher_saves_on_all_ranks(
    job: Path, folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    out = folder / "launched"
    launch = [sys.executable, "-m", "hedgerow", "launch", "--nproc", "2"]
    command = [*launch, *MODULE, str(job), "--epochs", "1000", "--out", str(out)]
    pipe = subprocess.PIPE
    running = subprocess.Popen(
        command, env=environ(), stdout=pipe, stderr=subprocess.STDOUT, text=True
    )
    started.append(running)
    _wait_for_step(out, 15, started)
    running.send_signal(signal.SIGINT)
    told = running.communicate(timeout=120)[0]
    assert running.returncode != 0
    last = work.events(out)[-1]
    assert (last["kind"], last["why"]) == ("end", "interrupted"), told
    assert told.count("go on with:  hedgerow train --resume") == 1
    assert (out / "checkpoints" / f"step-{last['step']:09d}" / "manifest.json").exists()
    _ends_as_unbroken(job, out, folder)


@pytest.mark.long  # tests/dist/test_launchers.py starts under mpirun in every run
def test_under_mpirun(job: Path, folder: Path, one: tuple[Path, Any]) -> None:
    out = folder / "mpi"
    done = finish([mpirun(), "-n", "2", sys.executable, *MODULE, job, "--out", out, "--json"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == work.STEPS
    _same(one[0], out)
