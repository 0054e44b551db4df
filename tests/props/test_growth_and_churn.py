"""Growth over several doublings, churn, and how far memory follows the rows that live."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hedgerow import native
from hedgerow.tables import initializers, optimizers

from ..support import EXTREME_IDS, OPTIMIZERS, everything, isa, make_table, table_config, threads


def _random_ids(n: int, seed: int) -> torch.Tensor:
    ids = np.random.default_rng(seed).integers(-(2**63), 2**63, n, dtype=np.int64)
    return torch.from_numpy(ids)


def test_every_row_survives_growth_over_many_doublings() -> None:
    table = make_table(init=initializers.Zeros(), dim=2)
    ids = torch.cat([torch.tensor(EXTREME_IDS), _random_ids(300_000, 1)])
    rows = torch.arange(2 * len(ids), dtype=torch.float32).view(-1, 2)
    step = 1
    at = 0
    while at < len(ids):  # from single rows to tens of thousands a call: 18 doublings
        table.assign(ids[at : at + step], rows[at : at + step])
        at, step = at + step, step * 2
    assert table.size() == len(ids)
    assert torch.equal(table.lookup(ids).rows_of(), rows)
    assert len(everything(table)) == len(ids)


@pytest.mark.parametrize(
    "pattern",
    ["sequential", "negative", "strided", "high bits", "slots", "multiples"],
)
def test_regular_ids_fill_the_index_as_evenly_as_random_ones(pattern: str) -> None:
    n = 50_000
    k = torch.arange(n)
    ids = {
        "sequential": k,
        "negative": -k - 1,
        "strided": k * 4096,
        "high bits": k << 46,
        "slots": ((k % 8) << 54) | (k // 8),
        "multiples": k * 0x61C8864680B583EB,
    }[pattern]
    table = make_table(dim=1)
    table.assign(ids, k[:, None].float())
    assert torch.equal(table.lookup(ids).rows, k.float())
    # 64 shards, 50,000 ids: an even spread keeps the whole index near its design load.
    assert table.stats()["load_factor"] > 0.5


@pytest.mark.parametrize(
    ("optimizer", "dim"),
    [
        (optimizers.Sgd(), 1),
        (optimizers.Sgd(), 16),
        (optimizers.RowAdagrad(), 16),
        (optimizers.Adagrad(), 64),
    ],
    ids=["dim 1", "dim 16", "row-wise", "dim 64"],
)
def test_churn_of_ten_times_the_table_keeps_memory_within_1_3_of_the_live_rows(
    optimizer: optimizers.Optimizer, dim: int
) -> None:
    live, step = 60_000, 6_000
    table = make_table(optimizer, dim=dim)
    ids, rows = _random_ids(live * 11, 2), torch.ones(live, dim)
    table.assign(ids[:live], rows)
    before = replace(table.memory(), other_bytes=0)  # not what the process keeps for reuse
    for at in range(0, live * 10, step):
        assert bool(table.erase(ids[at : at + step]).all())
        table.assign(ids[at + live : at + live + step], rows[:step])
    assert table.size() == live
    after = replace(table.memory(), other_bytes=0)
    # A live row takes its 16-byte aligned room, its time, and 16 bytes of an index that is full.
    aligned = -(-table.layout.row_bytes // 16) * 16
    assert after.total_bytes < 1.3 * live * (aligned + 8 + 16)
    assert after.total_bytes < 1.3 * before.total_bytes
    assert torch.equal(table.lookup(ids[-live:]).rows_of(), rows)


def test_erased_rows_are_reused_before_new_memory_is_taken() -> None:
    table = make_table(dim=16)
    ids = _random_ids(100_000, 3)
    table.assign(ids, torch.ones(len(ids), 16))
    held = native.memory_used()
    for seed in range(10):
        table.erase(ids)
        ids = _random_ids(100_000, 100 + seed)
        table.assign(ids, torch.ones(len(ids), 16))
    assert native.memory_used() < 1.1 * held


def test_clear_gives_the_memory_back() -> None:
    table = make_table(dim=16)
    ids = _random_ids(100_000, 4)
    before = native.memory_used()
    table.assign(ids, torch.ones(len(ids), 16))
    assert native.memory_used() > before + 100_000 * 64
    table.clear()
    assert native.memory_used() == before
    assert table.size() == 0
    assert not bool(table.contains(ids).any())
    table.assign(ids, torch.ones(len(ids), 16))
    assert table.size() == len(ids)


@pytest.mark.parametrize(
    "init",
    [initializers.Uniform(0.3), initializers.Normal(0.1), initializers.TruncatedNormal(0.1)],
    ids=lambda i: i.kind,
)
@pytest.mark.parametrize("dim", [1, 3, 16, 37, 130])
def test_first_values_are_the_same_bits_on_every_instruction_set(
    init: initializers.Initializer, dim: int
) -> None:
    ids = torch.cat([torch.tensor(EXTREME_IDS), _random_ids(500, 5)])
    seen = []
    for name in native.isas():
        with isa(name):
            seen.append(init.rows(ids, dim=dim, seed=2**63 + 5, first_column=3))
    assert len(seen) >= 1
    for rows in seen[1:]:
        assert torch.equal(rows.view(torch.int32), seen[0].view(torch.int32))


@pytest.mark.parametrize("dim", [1, 7, 16, 33, 64, 100])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)
def test_updates_are_the_same_bits_on_every_instruction_set(
    optimizer: optimizers.Optimizer, dim: int
) -> None:
    ids = _random_ids(40, 6)
    grads = torch.randn(3, 40, dim, generator=torch.Generator().manual_seed(1))
    rows = []
    for name in native.isas():
        with isa(name):
            table = make_table(optimizer, dim=dim)
            for step in range(3):
                table.apply_gradients(ids, grads[step], step=step)
            rows.append(everything(table))
    assert all(seen == rows[0] for seen in rows)


def test_lookups_with_out_write_the_given_buffer_and_with_any_thread_count() -> None:
    table = make_table(table_config().segments[0].optimizer, dim=8)
    ids = _random_ids(30_000, 7)
    table.assign(ids, torch.randn(len(ids), 8))
    expected = table.lookup(ids).rows_of().clone()
    for count in (1, 2, 4):
        with threads(count):
            out = torch.full((len(ids), 8), float("nan"))
            found = table.lookup(ids, out=out)
            assert found.rows.data_ptr() == out.data_ptr()
            assert torch.equal(out, expected)
