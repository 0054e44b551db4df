"""A table behind a cache says what it would say without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hedgerow.core.clock import ManualClock
from hedgerow.tables.config import TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tiers.caching import CachingTable

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
    assert pair.ours.fast.size() == len(pair.ours.places) <= rows
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
