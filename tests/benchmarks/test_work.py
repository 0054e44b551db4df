"""The work: the same for everyone, and what its name says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.workfile import Work
from benchmarks.work import WorkPlan, make_work, random_ids


@pytest.fixture
def work(tmp_path: Path) -> Work:
    plan = WorkPlan(
        name="W",
        rows=200_000,
        dim=3,
        accesses=("zipf", "uniform"),
        batch_ids=10_000,
        batches=4,
        call_ids=65_536,
    )
    return make_work(plan, tmp_path / "w")


def test_a_peer_reads_what_was_written(work: Work) -> None:
    again = Work.read(work.folder)
    assert again == work
    np.testing.assert_array_equal(again.ids(), random_ids(work.rows))


def test_two_runs_have_the_same_work(work: Work, tmp_path: Path) -> None:
    plan = WorkPlan(
        name="W",
        rows=200_000,
        dim=3,
        accesses=("zipf", "uniform"),
        batch_ids=10_000,
        batches=4,
    )
    other = make_work(plan, tmp_path / "other")
    for access in plan.accesses:
        np.testing.assert_array_equal(other.batches(access), work.batches(access))
    np.testing.assert_array_equal(other.gradients(), work.gradients())


def test_no_two_rows_start_alike(work: Work) -> None:
    rows = work.first_rows(0, work.rows)
    assert len(np.unique(rows, axis=0)) == work.rows
    some = np.array([5, 70_000, 199_999])
    np.testing.assert_array_equal(work.first_rows_of(some), rows[some])


def test_ids_are_different_and_of_both_signs() -> None:
    ids = random_ids(100_000)
    assert len(np.unique(ids)) == len(ids)
    assert 0.45 < (ids < 0).mean() < 0.55


def test_the_calls_cover_every_row_once(work: Work) -> None:
    assert work.calls() == [(0, 65_536), (65_536, 131_072), (131_072, 196_608), (196_608, 200_000)]


def test_zipf_asks_for_few_rows_often_and_uniform_does_not(work: Work) -> None:
    most = {}
    for access in ("zipf", "uniform"):
        batches = work.batches(access)
        assert batches.shape == (4, 10_000)
        assert 0 <= batches.min() <= batches.max() < work.rows
        most[access] = np.bincount(batches.ravel()).max() / batches.size
    weights = np.arange(1, work.rows + 1) ** -1.05
    assert most["zipf"] == pytest.approx(weights[0] / weights.sum(), rel=0.1)
    assert most["uniform"] < 0.001


def test_the_sample_lies_among_the_rows_that_are_touched(work: Work) -> None:
    sample = work.sample("zipf")
    assert len(np.unique(sample)) == len(sample)
    assert np.isin(sample, work.batches("zipf")).all()
