"""Thousands of programs that insert the same few ids at once: each id gets one slot, none is lost.

The interpreter runs one program after another, so only a GPU can show a race.
"""

from __future__ import annotations

import pytest
import torch

from hedgerow.kernels import find
from hedgerow.kernels.layout import EMPTY, ERASED, KEYS, TAKEN, Arrays
from hedgerow.tables import optimizers
from hedgerow.tables.device import DeviceTable
from tests.twins import kernels_table

from ..kernels.cases import ODD_IDS
from ..support import everything, host_table, table_config

ROUNDS, BATCH, BUCKETS = 50, 10**6, 64  # 2**10 slots


def _pool(distinct: int, seed: int, device: torch.device) -> torch.Tensor:
    random = torch.Generator(device).manual_seed(seed)
    pool = torch.randint(-(2**63), 2**63 - 1, (distinct,), device=device, generator=random)
    pool[: len(ODD_IDS)] = torch.tensor(ODD_IDS, device=device)
    return pool


def _slot_of_each(which: torch.Tensor, slots: torch.Tensor, distinct: int) -> torch.Tensor:
    """The slot that all occurrences of each id were given; they must agree."""
    low = torch.full((distinct,), 2**62, device=slots.device).scatter_reduce(
        0, which, slots, "amin"
    )
    high = torch.full((distinct,), -2, device=slots.device).scatter_reduce(0, which, slots, "amax")
    asked = high >= -1
    assert torch.equal(low[asked], high[asked]), "an id was given two slots"
    return torch.where(asked, low, -1)


def _check_keys(table: Arrays, pool: torch.Tensor, slot: torch.Tensor) -> None:
    """The table holds the ids that were given slots, in those slots, and nothing else."""
    held = slot >= 0
    special = (pool == EMPTY) | (pool == ERASED)
    wanted = torch.where(special, TAKEN, pool)[held]
    assert torch.equal(table.read(KEYS, slot[held]), wanted)
    assert int((table.line(KEYS) != EMPTY).sum()) == int(held.sum())


@pytest.mark.parametrize("distinct", [20, 600, 850])
def test_every_id_gets_one_slot(device: torch.device, distinct: int) -> None:
    for seed in range(ROUNDS):
        pool = _pool(distinct, seed, device)
        which = torch.randint(distinct, (BATCH,), device=device)
        table = Arrays.make(BUCKETS, 1, device)
        slots, new = find.find_or_insert(table, pool[which])
        slot = _slot_of_each(which, slots, distinct)
        _check_keys(table, pool, slot)
        assert int(new.sum()) == int((slot >= 0).sum())
        assert distinct > 600 or bool((slot >= 0).all()), f"{int((slot < 0).sum())} refused"
        assert torch.equal(find.find(table, pool), slot)


def test_an_id_is_refused_by_all_or_by_none_and_only_when_its_buckets_are_full(
    device: torch.device,
) -> None:
    distinct = 3000
    for seed in range(ROUNDS):
        pool = _pool(distinct, seed, device)
        which = torch.cat([torch.randperm(distinct, device=device) for _ in range(300)])
        table = Arrays.make(BUCKETS, 1, device)
        slots, new = find.find_or_insert(table, pool[which])
        slot = _slot_of_each(which, slots, distinct)
        _check_keys(table, pool, slot)
        assert int(new.sum()) == int((slot >= 0).sum()) >= 1000
        lines = table.index[:BUCKETS, KEYS]
        full = (lines != EMPTY).all(dim=1).cpu()
        first, second = kernels_table.place(pool[slot < 0].cpu(), BUCKETS)
        assert bool((full[first] & full[second]).all()), "an id was refused although it had room"


def test_steps_under_contention_count_every_id_and_lose_none(device: torch.device) -> None:
    config = table_config(optimizers.Sgd(lr=0.1), dim=8, not_finite="drop")
    ours = DeviceTable(config, capacity_rows=1024, device=device)
    model = host_table(config)
    pool = _pool(600, 1, device)
    for ts in range(5):
        ids = pool[torch.randint(600, (20_000,), device=device)]
        grads = torch.randn(len(ids), 8, device=device)
        done = ours.apply_gradients(ours.lookup(ids), grads, ts=ts)
        wanted = model.apply_gradients(ids.cpu(), grads.cpu(), ts=ts)
        assert repr(done) == repr(wanted)
    assert everything(ours) == everything(model)


def test_an_overfull_table_counts_what_it_refuses(device: torch.device) -> None:
    config = table_config(optimizers.Sgd(lr=0.1), dim=4, not_finite="drop")
    table = DeviceTable(config, capacity_rows=1024, device=device)
    pool = _pool(5000, 2, device)
    for step in range(20):
        ids = torch.cat([pool, pool])[torch.randperm(10_000, device=device)]
        done = table.apply_gradients(ids, torch.ones(10_000, 4, device=device))
        inserted, refused, dropped = done.counts.tolist()
        assert (inserted > 0) == (step == 0)
        assert table.size() + refused == 5000
        assert dropped == 0
    assert table.size() >= 1000
    rows = table.lookup(pool).rows_of()
    assert int(rows.any(dim=1).sum()) == table.size()
