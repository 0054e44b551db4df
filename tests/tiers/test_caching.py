"""A table behind a cache says what it would say without one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow.core.clock import ManualClock
from hedgerow.tables.config import TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tiers.caching import CachingTable

from ..crafted_ids import that_share_a_bucket_of_numpy
from .against_one import Against
from .test_hybrid import CONFIGS, SIZED, fast_config


def caching(rows: int, *, queue_rows: int | None = None) -> Any:
    def make(config: TableConfig, clock: ManualClock) -> CachingTable:
        return CachingTable(
            HostTable(fast_config(config), clock=clock),
            HostTable(config, clock=clock),
            cache_rows=rows,
            allow_small=rows < 60,
            queue_rows=queue_rows,
        )

    return make


@pytest.mark.parametrize(("config", "rows"), SIZED)
def test_random_calls_give_the_rows_of_one_table(config: TableConfig, rows: int) -> None:
    pair = Against(config, caching(rows, queue_rows=1 + rows // 2), seed=rows)
    pair.run(80)
    assert pair.ours.fast.size() == len(pair.ours.resident) <= rows
    assert pair.ours.stats()["fetches"] > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_many_random_calls(config: TableConfig, seed: int) -> None:
    pair = Against(config, caching(1 + 5 * seed), seed=seed, ids=100)
    pair.run(600)


@pytest.mark.parametrize("config", CONFIGS[2:4], ids=lambda c: c.name)
def test_saves_and_loads_see_one_table(config: TableConfig, tmp_path: Path) -> None:
    pair = Against(config, caching(7), seed=3)
    pair.run(40)
    pair.save_and_load(tmp_path)
    pair.run(40)


def test_ids_that_share_a_bucket_of_numpys_hash_are_prefetched_as_fast_as_any() -> None:
    crafted = that_share_a_bucket_of_numpy(2000, buckets=2179)  # as many as it has for 2,000 ids
    usual = torch.randint(-(2**63), 2**63 - 1, (2000,))

    def took_s(ids: torch.Tensor) -> float:
        table = CachingTable(HostTable(CONFIGS[0]), HostTable(CONFIGS[0]), cache_rows=2000)
        began_s = time.thread_time()
        table.prefetch(ids).release()
        return time.thread_time() - began_s

    assert min(took_s(crafted) for _ in range(9)) < 3 * min(took_s(usual) for _ in range(9))
