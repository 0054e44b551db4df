"""A table of which every row lies in one of two stores says what one store would say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.core.clock import ManualClock
from hedgerow.tables.admission import Chance, Within
from hedgerow.tables.config import TableConfig
from hedgerow.tables.eviction import Lru, Ttl
from hedgerow.tables.host import HostTable
from hedgerow.tables.optimizers import Adagrad, Adam, Ftrl, RowAdagrad, Sgd
from hedgerow.tiers.hybrid import HybridTable

from ..support import table_config
from .against_one import Against

CONFIGS = [
    table_config(Sgd(lr=0.1), dim=3, name="sgd"),
    table_config(Adam(lr=0.1), dim=5, name="adam", evict=Lru(20)),
    table_config(Adagrad(lr=0.1), dim=2, name="adagrad", evict=Ttl(30 / 86400)),
    table_config(RowAdagrad(lr=0.1), dim=4, name="within", admit=Within(1000, 3)),
    table_config(Ftrl(lr=0.1), dim=3, name="chance", admit=Chance(0.5), evict=Ttl(40 / 86400)),
    table_config(Sgd(lr=1e38), dim=2, name="overflows", not_finite="drop"),
]
SIZED = [
    pytest.param(config, rows, id=f"{config.name}-{rows}")
    for config, rows in zip(CONFIGS, (1, 7, 1000, 40, 3, 20), strict=True)
]


def fast_config(config: TableConfig) -> TableConfig:
    return replace(config, admit=None)


def hybrid(rows: int, promotions: int | None = None) -> Any:
    def make(config: TableConfig, clock: ManualClock) -> HybridTable:
        fast = HostTable(fast_config(config), clock=clock)
        slow = HostTable(config, clock=clock)
        return HybridTable(fast, slow, fast_rows=rows, promotions=promotions)

    return make


@pytest.mark.parametrize(("config", "rows"), SIZED)
def test_random_calls_give_the_rows_of_one_table(config: TableConfig, rows: int) -> None:
    pair = Against(config, hybrid(rows, promotions=max(1, rows // 2)), seed=rows)
    pair.run(80)
    assert pair.ours.fast.size() == len(pair.ours.resident) <= rows
    assert pair.ours.stats()["promotions"] > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_many_random_calls(config: TableConfig, seed: int) -> None:
    pair = Against(config, hybrid(1 + 3 * seed), seed=seed, ids=100)
    pair.run(600)


@pytest.mark.parametrize("config", CONFIGS[2:4], ids=lambda c: c.name)
def test_saves_and_loads_see_one_table(config: TableConfig, tmp_path: Path) -> None:
    pair = Against(config, hybrid(7, promotions=4), seed=3)
    pair.run(40)
    pair.save_and_load(tmp_path)
    pair.run(40)
