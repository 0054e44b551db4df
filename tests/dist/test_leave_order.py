"""The order in which rows leave, over ranks: shards count alike, so that a load may join them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.nn.model_tables import routers_of

from . import leave_order_work as work
from .pool import Pool

pytestmark = pytest.mark.xdist_group("leave_order")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(3, tmp_path_factory.mktemp("leave_order"))
    yield made
    made.close()


def _of_rank(rank: int) -> list[int]:
    """Ids that this one of two ranks owns."""
    ids = torch.arange(200)
    return ids[routers_of(work.made(hr.Lru(9)), 2)["t"].owners(ids) == rank].tolist()


def test_rows_of_two_ranks_leave_one_process_in_the_order_of_their_use(
    pool: Pool, tmp_path: Path
) -> None:
    first, second = _of_rank(0), _of_rank(1)
    steps = [[key] for key in (*first[:20], *second[:3], first[4])]
    pool.run(2, work.save, tmp_path / "saved", hr.Lru(100), steps)
    bags = work.made(hr.Lru(100))
    hr.load(bags, tmp_path / "saved")
    bags.table("t").evict(rows=6)
    assert sorted(work.ids_of(bags)) == sorted([*first[18:20], *second[:3], first[4]])


def _skewed_steps() -> list[list[int]]:
    """Four of five uses are of ids of rank 0, and some steps have none of rank 1."""
    dice, first, second = random.Random(1), _of_rank(0)[:12], _of_rank(1)[:6]
    return [
        [*dice.choices(first, k=8), *dice.choices(second, k=dice.randint(0, 4))] for _ in range(80)
    ]


def _joined(parts: list[dict[int, float]]) -> dict[int, float]:
    return {key: count for part in parts for key, count in part.items()}


def test_counts_over_ranks_are_those_of_one_process_saved_and_loaded(
    pool: Pool, tmp_path: Path
) -> None:
    steps, folder = _skewed_steps(), tmp_path / "saved"
    alone = work.made(work.LFU)
    work.train(alone, steps)
    wanted = pytest.approx(work.uses_of(alone), rel=0.01)
    assert _joined(pool.run(2, work.save, folder, work.LFU, steps)) == wanted
    bags = work.made(work.LFU)
    hr.load(bags, folder)
    assert work.uses_of(bags) == wanted
    more = steps[:30]
    work.train(alone, more)
    later = pytest.approx(work.uses_of(alone), rel=0.01)
    for ranks in (2, 3):
        assert _joined(pool.run(ranks, work.load, folder, work.LFU, more)) == later


def test_counts_of_updates_that_waited_are_those_of_one_process(pool: Pool, tmp_path: Path) -> None:
    steps = _skewed_steps()
    alone = work.made(work.LFU)
    for first in range(0, len(steps), 2):
        with hr.hold_updates(alone):
            work.train(alone, steps[first : first + 2])
    counts = _joined(pool.run(2, work.held, tmp_path / "saved", steps))
    assert counts == pytest.approx(work.uses_of(alone), rel=0.01)
