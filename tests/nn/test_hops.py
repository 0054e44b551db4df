"""How many functions of the package a step passes through."""

from __future__ import annotations

from pathlib import Path

import torch

import hedgerow as hr
from hedgerow.tiers.tier_tables import Tiers, TierTables, device_tier_tables
from tests.dist.pool import Pool
from tests.dist.test_placements import on_servers

from . import hops


def test_a_step_over_four_ranks(tmp_path: Path) -> None:
    pool = Pool(4, tmp_path)
    try:
        for forward, backward in pool.run(4, hops.step_over_ranks):
            assert len(forward) <= 70, "\n".join(forward)
            assert len(backward) <= 60, "\n".join(backward)
    finally:
        pool.close()


def test_a_step_of_a_client_of_servers() -> None:
    with on_servers(hops.module(), 2) as spread:
        forward, backward = hops.functions_of_a_step(spread, hr.IdBatch.from_lists(hops.BATCH))
    assert len(forward) <= 70, "\n".join(forward)
    assert len(backward) <= 70, "\n".join(backward)


def test_a_step_of_a_cache_on_a_device(device: torch.device) -> None:
    """Kernels are not counted: under the interpreter they are functions, on a GPU launches."""
    module, tiers = hops.module(), Tiers(mode="CACHING", fast_rows=64, allow_small=True)
    configs = module.store.configs_to_move(device).values()
    tables, groups = device_tier_tables([(one, tiers) for one in configs], device, module.clock)
    module.set_store(TierTables(tables, device=device, together=groups))
    batch = hr.IdBatch.from_lists(hops.BATCH).to(device)
    forward, backward = (
        [name for name in functions if not name.startswith("kernels/")]
        for functions in hops.functions_of_a_step(module, batch)
    )
    assert len(forward) <= 60, "\n".join(forward)
    assert len(backward) <= 70, "\n".join(backward)
