"""Rows of the next batch travel between ranks while this one is worked on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import prefetch_work as work
from .gloo_ranks import run_ranks
from .pool import Pool

pytestmark = pytest.mark.xdist_group("prefetch")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(2, tmp_path_factory.mktemp("prefetch"))
    yield made
    made.close()


def test_losses_and_rows_are_those_without_prefetch(pool: Pool) -> None:
    pool.run(2, work.as_without_prefetch)


def test_a_slow_way_is_hidden_behind_the_dense_part(pool: Pool) -> None:
    """Both take 20 ms: without prefetch one after the other, with it side by side."""
    assert min(pool.run(2, work.what_prefetch_saves)) >= 0.010


def test_a_source_that_fails_on_one_rank_ends_all(tmp_path: Path) -> None:
    """The rank itself says what went wrong, and its end, no timeout, is what the other one sees."""
    other, failed = run_ranks(2, work.a_source_that_fails_on_rank_1, tmp_path)
    assert "the disk is gone" in failed.splitlines()[-1]
    assert "by peer" in other
