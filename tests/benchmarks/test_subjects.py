"""We and the peers of this environment do what the work asks, by a plain computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gather import Gather, check_numbers, on_huge_pages
from benchmarks.ours import Ours
from benchmarks.peers.subject import Subject, measure, outcome, ready
from benchmarks.peers.torch_tables import Dictionary, Embedding, IndexSelect, SparseEmbedding
from benchmarks.peers.workfile import Work
from benchmarks.work import WorkPlan, make_work
from hedgerow import native
from hedgerow.core.errors import InputError
from tests.support import threads

PLAN = WorkPlan(
    name="W",
    rows=3_000,
    dim=5,
    accesses=("zipf", "inserts"),
    batch_ids=1_000,
    batches=3,
    call_ids=700,
)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return make_work(PLAN, tmp_path / "w")


@pytest.fixture(autouse=True)
def _keep_threads() -> object:
    torch_threads = torch.get_num_threads()
    with threads(native.threads()):
        yield
    torch.set_num_threads(torch_threads)


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        (Ours, "fresh"),
        (Ours, "reused"),
        (Embedding, "fresh"),
        (Dictionary, "fresh"),
        (IndexSelect, "reused"),
        (Gather, "reused"),
    ],
)
def test_lookups_return_first_rows(kind: type[Subject], output: str, work: Work) -> None:
    subject = kind(work, 1, None)
    subject.fill()
    subject.place("zipf")
    expected = work.first_rows_of(work.batches("zipf")[0])
    np.testing.assert_array_equal(outcome(subject, "lookup", "zipf", output), expected)
    first, second = (subject.array(subject.lookup(b, output)) for b in (0, 1))
    assert np.shares_memory(first, second) == (output == "reused")
    assert measure(subject, "lookup", "zipf", output, calls=4) > 0


def _expected(work: Work, optimizer: str, steps: int) -> np.ndarray:
    rows = work.first_rows(0, work.rows).astype(np.float64)
    sums = np.full_like(rows, work.accumulator)
    batches = work.batches("zipf")
    for step in range(steps):
        total = np.zeros_like(rows)
        np.add.at(total, batches[step % len(batches)], work.gradients())
        sums += total**2
        scale = 1.0 if optimizer == "sgd" else 1 / (np.sqrt(sums) + work.eps)
        rows -= work.rate * total * scale
    return rows[work.sample("zipf")]


@pytest.mark.parametrize("kind", [Ours, SparseEmbedding])
def test_updates_take_the_same_steps(kind: type[Subject], work: Work) -> None:
    for optimizer in ("sgd", "adagrad"):
        subject = kind(work, 1, optimizer)
        subject.fill()
        ready(subject, "update", "zipf")
        measure(subject, "update", "zipf", "fresh", calls=5)  # every batch twice
        got = outcome(subject, "update", "zipf", "fresh")
        np.testing.assert_allclose(got, _expected(work, optimizer, 6), rtol=1e-5, atol=1e-6)


def test_after_a_reset_our_rows_and_states_are_as_filled(work: Work) -> None:
    ours = Ours(work, 1, "adagrad")
    ours.fill()
    ready(ours, "update", "zipf")
    for _ in range(2):
        measure(ours, "update", "zipf", "reused", calls=1)
        got = outcome(ours, "update", "zipf", "reused")
        np.testing.assert_allclose(got, _expected(work, "adagrad", 3), rtol=1e-5, atol=1e-6)
        ours.reset()
    every = np.arange(work.rows)
    np.testing.assert_array_equal(ours.rows(every), work.first_rows(0, work.rows))


@pytest.mark.parametrize("kind", [Ours, Dictionary])
def test_inserts_fill_an_empty_table_each_round(kind: type[Subject], work: Work) -> None:
    subject = kind(work, 1, None)
    ready(subject, "insert", "inserts")
    for _ in range(2):
        assert measure(subject, "insert", "inserts", "fresh", calls=1) > 0
        got = outcome(subject, "insert", "inserts", "fresh")
        np.testing.assert_array_equal(got, work.first_rows_of(work.sample("inserts")))


def test_rows_on_huge_pages_are_zero_and_writable() -> None:
    rows = on_huge_pages(1000, 600)  # more than one huge page
    assert not rows.any()
    rows += 1
    assert float(rows.sum()) == 600_000


@pytest.mark.parametrize(("numbers", "said"), [([-1, 3], "-1..3"), ([0, 5], "0..5")])
def test_row_numbers_outside_the_table_are_refused(numbers: list[int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_numbers(torch.tensor(numbers), 5)
    check_numbers(torch.empty(0, dtype=torch.int64), 5)
