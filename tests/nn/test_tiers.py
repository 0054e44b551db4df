"""A model whose plan puts tables into two tiers learns what it learns in one."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import CacheTooSmallError
from hedgerow.nn.model_tables import tables_of
from hedgerow.nn.tier_stores import compare_with_plan, planned_tiers
from hedgerow.planner import Topology
from hedgerow.planner.plan import Plan
from hedgerow.planner.problem.options import Mode, Variant
from hedgerow.tiers.caching import CachingTable
from hedgerow.tiers.hybrid import HybridTable
from hedgerow.tiers.tier_tables import Tiers, front_config, over

from ..support import everything, table_config
from .training import train

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="fast tiers would be on the GPU")
MACHINE = Topology(world=1, ddr_per_machine=2**33, hbm_per_device=2**33)


class _Model(torch.nn.Module):
    def __init__(self, times: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sparse = hr.EmbeddingBags(
            [
                hr.Table("item", 8, features=["item", "seen"], rows=2000 * times),
                hr.Table("shop", 4, rows=300, optimizer=hr.Sgd(lr=0.2)),
                hr.Table(
                    "user", 4, rows=1000 * times, optimizer=hr.Adam(lr=0.05), evict=hr.Lru(700)
                ),
            ],
            optimizer=hr.Adagrad(lr=0.1),
            seed=3,
            clock=ManualClock(10**6),
        )
        self.top = torch.nn.Linear(24, 1)

    def forward(self, ids: hr.IdBatch) -> torch.Tensor:
        return self.top(torch.cat(list(self.sparse(ids).values()), dim=1)).squeeze(1)


def _plan(model: torch.nn.Module, **modes: str) -> Plan:
    """As made, with other modes."""
    found = hr.plan(model, replace(MACHINE, device="cpu", hbm_per_device=0))
    lines = []
    for line in found.tables:
        mode, _, factor = modes.get(line.name, "HOST_ONLY@0").partition("@")
        lines.append(replace(line, variant=Variant(Mode(mode), factor)))
    return replace(found, tables=tuple(lines))


def _batches(steps: int, seed: int = 1) -> Any:
    random = np.random.default_rng(seed)
    for step in range(steps):
        user = (random.zipf(1.3, 32) * 7 + step // 10) % 1000
        item = random.zipf(1.2, 96) % 2000
        seen = random.integers(0, 2000, 64)
        ids = {
            "item": item.reshape(32, 3).tolist(),
            "seen": seen.reshape(32, 2).tolist(),
            "shop": (item[:32] % 300).reshape(32, 1).tolist(),
            "user": user.reshape(32, 1).tolist(),
        }
        yield hr.IdBatch.from_lists(ids), torch.from_numpy(user % 2).float()


def _train(model: torch.nn.Module, steps: int, seed: int = 1) -> list[float]:
    return train(model, _batches(steps, seed))


def test_training_in_tiers_gives_the_bits_of_one_tier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, tiered = _Model(), _Model()
    plan = _plan(tiered, item="CACHING@0.2", user="HYBRID@0.1")
    with caplog.at_level(logging.WARNING, logger="hedgerow"):
        hr.distribute(tiered, plan=plan)
    assert "no GPU here: their fast tiers are in host memory" in caplog.text
    kinds = {name: type(table).__name__ for name, table in tables_of(tiered).items()}
    assert kinds == {"item": "CachingTable", "shop": "HostTable", "user": "HybridTable"}
    assert _train(tiered, 40) == _train(plain, 40)
    hr.save(tiered, tmp_path / "tiered", step=40)
    resumed = _Model()
    hr.distribute(resumed, plan=_plan(resumed, item="HYBRID@0.5", shop="CACHING@0.9"))
    hr.load(resumed, tmp_path / "tiered")
    expected = _train(plain, 20, seed=2)
    assert _train(resumed, 20, seed=2) == expected
    assert _train(tiered, 20, seed=2) == expected
    for name, table in tables_of(plain).items():
        assert everything(tables_of(tiered)[name]) == everything(table)
        assert everything(tables_of(resumed)[name]) == everything(table)
    stats: Any = hr.stats(tiered)
    assert stats["item"]["fetches"] > 0
    assert stats["user"]["promotions"] > 0
    assert "item" in hr.summary(tiered)
    tiered.eval()
    plain.eval()
    ids, _ = next(_batches(1, seed=5))
    assert torch.equal(tiered(ids), plain(ids))


def test_a_budget_too_small_for_hbm_gives_tiers_that_train() -> None:
    """The planner's own choice, made for a card that the tables do not fit."""
    model, plain = _Model(times=100), _Model()
    names = ("item", "shop", "user")
    whole = hr.plan(model, MACHINE, batch=32, pin=dict.fromkeys(names, "HBM_ONLY"))
    wanted = sum(t.hbm_bytes for t in whole.tables)
    small = replace(MACHINE, hbm_per_device=wanted // 2)
    reserve = hr.planner.Reserve(hbm_fraction=0, ddr_fraction=0)
    # There is no card here, so the smallest one stays on the host; the others are the planner's.
    plan = hr.plan(model, small, reserve=reserve, batch=32, pin={"shop": "HOST_ONLY"})
    assert sum(t.hbm_bytes for t in plan.tables) <= wanted // 2
    modes = {t.name: t.mode for t in plan.tables}
    assert modes["item"] in (Mode.HYBRID, Mode.CACHING)
    assert modes["user"] in (Mode.HYBRID, Mode.CACHING)
    hr.distribute(model, plan=plan)
    assert _train(model, 10) == _train(plain, 10)


def test_a_batch_larger_than_the_planned_cache_is_told_of() -> None:
    model = _Model()
    hr.distribute(model, plan=_plan(model, item="CACHING@0.02"))
    with pytest.raises(CacheTooSmallError, match=r"'item'.*the cache holds at most 4[0-9] rows"):
        _train(model, 1)


def test_fast_rows_are_the_planned_share() -> None:
    model = _Model()
    plan = _plan(model, item="CACHING@0.25", user="HYBRID@0.1")
    hr.distribute(model, plan=plan)
    item, user = tables_of(model)["item"], tables_of(model)["user"]
    assert isinstance(item, CachingTable)
    assert isinstance(user, HybridTable)
    assert item.resident.rows == plan.of("item").rows_per_rank // 4
    assert user.resident.rows == plan.of("user").rows_per_rank // 10


@pytest.mark.parametrize("label", ["HYBRID@0.1", "CACHING@0.3"])
def test_what_a_device_takes_is_what_was_planned(
    label: str, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    from hedgerow.tables.device import DeviceTable

    model = hr.EmbeddingBags([hr.Table("item", 8, rows=20_000, optimizer=hr.Adam())])
    made = hr.plan(model, MACHINE, pin={"item": label})
    line, config = made.of("item"), table_config(hr.Adam(), dim=8, name="item")

    def off_by(tiers: Tiers) -> float | None:
        assert tiers.slots is not None
        front = front_config(config, tiers)
        fast = DeviceTable(front, capacity_rows=tiers.slots, device=device)
        return compare_with_plan(line, over(fast, hr.HostTable(config), tiers))

    tiers = planned_tiers(line)
    assert tiers.slots is not None
    off = off_by(tiers)
    assert off is not None
    assert abs(off) < 0.02
    assert not caplog.records
    # Rows and slots: the counts of a hybrid go with its rows, the marks of a cache with its slots.
    off = off_by(replace(tiers, fast_rows=2 * tiers.fast_rows, slots=2 * tiers.slots))
    assert off is not None
    assert off > 0.9
    assert "table item: its rows on the device take" in caplog.text


@pytest.mark.parametrize("tables", [1, 2])
def test_what_a_table_takes_that_is_whole_on_a_device_was_planned(
    tables: int, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    """By itself, or as one of several that are alike."""
    from hedgerow.tables.multi.device_tables import DeviceTables

    names = ["item", "user"][:tables]
    model = hr.EmbeddingBags([hr.Table(name, 8, rows=20_000) for name in names])
    made = hr.plan(model, MACHINE, pin=dict.fromkeys(names, "HBM_ONLY"))
    configs = {name: table_config(hr.Adagrad(lr=0.1), dim=8, name=name) for name in names}
    for room in (1, 2):
        rows = {name: room * made.of(name).rows_per_rank for name in names}
        store = DeviceTables(configs, device=device, capacity_rows=rows)
        for name, table in zip(names, store.tables, strict=True):
            off = compare_with_plan(made.of(name), table)
            assert off is not None
            assert off == pytest.approx(room - 1, abs=0.02)
            assert (f"table {name}: its rows on the device take" in caplog.text) == (room == 2)
