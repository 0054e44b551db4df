"""Plans over real processes: all ranks have the same one, follow it, and say so."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import hedgerow as hr
from hedgerow.cli import app as program
from hedgerow.core.errors import FileMissingError
from hedgerow.data.movielens_100k import movielens_files
from hedgerow.routing.router import Router

from . import plan_work as work
from .launched import ROOT, finish
from .pool import Pool

pytestmark = pytest.mark.xdist_group("distribute")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Pool]:
    made = Pool(2, folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plan(folder: Path) -> str:
    machine = hr.planner.Topology(world=2, ddr_per_machine=2**33, device="cpu")
    hr.plan(work.model(), machine).save(folder / "plan.json")
    return str(folder / "plan.json")


def test_every_rank_logs_mode_factor_and_bytes(pool: Pool, plan: str) -> None:
    for given in (plan, "auto"):
        for rank, (error, lines) in enumerate(pool.run(2, work.follows, given)):
            assert error == ""
            assert len(lines) == 2
            for line, name in zip(lines, ("user", "item"), strict=True):
                assert line.startswith(f"plan, rank {rank} of 2: {name} HOST_ONLY factor 0, ")
                assert re.search(r"HBM 0 B, host \d+(\.\d+)? KiB$", line)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("fingerprint", "rank 1 has another plan than rank 0: they differ in fingerprint"),
        ("bytes", "rank 1 has another plan than rank 0: they differ in table user"),
        ("none", "plan: none on rank 1 and given on rank 0"),
    ],
)
def test_a_rank_with_another_plan_is_named_on_all(
    pool: Pool, plan: str, change: str, words: str
) -> None:
    for error, lines in pool.run(2, work.follows_own, plan, change):
        assert words in error
        assert lines == []


def test_a_file_that_one_rank_cannot_read_stops_all(pool: Pool, plan: str) -> None:
    told = pool.run(2, work.follows_own, plan, "damaged")
    assert "rank 1 of 2" in told[0][0]
    assert all("is no JSON" in error for error, _ in told)


def test_a_plan_of_three_ranks_is_refused_by_two(pool: Pool, folder: Path) -> None:
    machine = hr.planner.Topology(world=3, ddr_per_machine=2**33, device="cpu")
    hr.plan(work.model(), machine).save(folder / "three.json")
    for error, _ in pool.run(2, work.follows, str(folder / "three.json")):
        assert "the plan is for 3 ranks, the job has 2" in error


def test_roundrobin_tables_are_planned_sharded_and_saved_as_roundrobin(
    pool: Pool, plan: str, folder: Path
) -> None:
    planned = {line.name: line.dist_type for line in hr.planner.Plan.load(plan).tables}
    assert planned == {"user": "roundrobin", "item": "hash_roundrobin"}
    held = pool.run(2, work.trained_and_saved, plan, str(folder / "saved"))
    for name, rule in planned.items():
        owners = Router(rule, 2, rows=100).owners(torch.arange(20)).tolist()
        for rank, ids in enumerate(held):
            assert ids[name] == [n for n in range(20) if owners[n] == rank]
    manifest = json.loads((folder / "saved" / "manifest.json").read_text())
    assert {name: t["dist_type"] for name, t in manifest["tables"].items()} == planned


def test_movielens_is_planned_then_trained_by_its_plan(tmp_path: Path) -> None:
    try:
        movielens_files(None)
    except FileMissingError as error:
        pytest.skip(f"NO PACKAGE INDEX: MovieLens is not planned and trained. {error}")
    job, out = ROOT / "examples" / "movielens.toml", tmp_path / "plan.json"
    words = ["plan", str(job), "--ranks", "2", "--hbm", "0", "--host", "8GiB", "--out", str(out)]
    planned = CliRunner().invoke(program.app, words)
    assert planned.exit_code == 0, planned.output
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    training = ("-m", "hedgerow", "train", job, "--plan", out, "--steps", "2")
    done = finish([*launch, *training, "--out", tmp_path / "run"])
    assert done.returncode == 0, done.stderr
    found = hr.planner.Plan.load(out)
    assert found.names[:2] == ("user", "item")
    for rank in (0, 1):
        for line in found.tables:
            said = f"plan, rank {rank} of 2: {line.name} HOST_ONLY factor 0, hash_roundrobin, "
            assert said in done.stderr
    assert done.stderr.count("HBM 0 B, host ") == 2 * len(found.tables)
    saved = json.loads((tmp_path / "run" / "job.json").read_text())
    assert saved["train"]["plan"] == str(out)
