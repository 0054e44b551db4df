"""Steps of a real size: no waiting for the host, CUDA graphs, rows beyond 2**31 floats."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hedgerow.kernels import sum_gradients
from hedgerow.kernels.layout import group
from hedgerow.tables import initializers, optimizers
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.multi.device_tables import DeviceTables
from hedgerow.tables.store import TableKeys
from tests.twins import kernels_table

from ..support import everything, host_table, table_config
from ..waiting import without_waiting


def _table(device: torch.device, dim: int = 64, rows: int = 1 << 20) -> DeviceTable:
    config = table_config(optimizers.Sgd(lr=0.1, weight_decay=0.01), dim=dim, not_finite="drop")
    return DeviceTable(config, capacity_rows=rows, device=device)


def _ids(n: int, distinct: int, device: torch.device, seed: int = 1) -> torch.Tensor:
    random = torch.Generator(device).manual_seed(seed)
    return torch.randint(distinct, (n,), device=device, generator=random) * 0x9E3779B97F4A7C1 - 5


def test_the_guard_of_these_tests_notices_waiting(device: torch.device) -> None:
    with pytest.raises(RuntimeError), without_waiting(device):
        int(torch.ones(1, device=device))


def test_a_step_does_not_wait_for_the_device(device: torch.device) -> None:
    table = _table(device)
    ids = _ids(65536, 50_000, device)
    keys = TableKeys(ids, (0, len(ids)), torch.tensor([60_000], device=device))
    grads = torch.randn(len(ids), 64, device=device)
    for warmed_up in (False, True):  # the first time it compiles
        with without_waiting(device):
            found = table.lookup(keys, missing="initializer")
            done = table.apply_gradients(found, grads, ts=1)
            table.apply_gradients(ids, grads, ts=2)
        assert (done.inserted == 0) == warmed_up
    assert table.size() == len(torch.unique(ids))


def _several(device: torch.device, tables: int) -> DeviceTables:
    config = table_config(optimizers.Sgd(lr=0.1, weight_decay=0.01), dim=64, not_finite="drop")
    configs = {name: replace(config, name=name) for name in "abc"[:tables]}
    room = dict.fromkeys(configs, 1 << 19)
    return DeviceTables(configs, device=device, capacity_rows=room)


@pytest.mark.parametrize("tables", [0, 1, 2])
def test_a_step_can_be_captured_in_a_graph(device: torch.device, tables: int) -> None:
    """Of a table, and of several as one, or of one alone."""
    n = 20_000
    eager, graphed = (_several(device, tables) if tables else _table(device) for _ in range(2))
    ids, grads = _ids(n, 15_000, device), torch.randn(n * 64, device=device)
    out = torch.empty(n * 64, device=device)
    splits = {0: (0, n), 1: (0, n), 2: (0, 7000, n)}[tables]

    def step(store: DeviceTable | DeviceTables) -> torch.Tensor:
        found = store.lookup(TableKeys(ids, splits), missing="initializer", out=out)
        return store.apply_gradients(found, grads, ts=3).counts

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(graphed)  # compiles
    torch.cuda.current_stream().wait_stream(side)
    step(eager)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counts = step(graphed)
    for seed in (2, 3):
        for _ in range(20):  # memory that the capture left is used by others
            torch.full((8,), -1).pin_memory()
        ids.copy_(_ids(n, 15_000, device, seed))
        grads.copy_(torch.randn(n * 64, device=device))
        graph.replay()
        replayed = counts.tolist()
        assert step(eager).tolist() == replayed
    rows = [store.lookup(TableKeys(ids, splits)).rows for store in (eager, graphed)]
    assert torch.equal(*rows)
    assert eager.size() == graphed.size()


@pytest.mark.parametrize("dim", [1, 16, 64, 100, 128, 300, 1024])
def test_many_rows_of_any_dim_are_those_of_the_host_table(device: torch.device, dim: int) -> None:
    init = initializers.Uniform(0.05)
    sgd = optimizers.Sgd(lr=0.05, weight_decay=0.01)
    config = table_config(sgd, dim=dim, init=init, not_finite="drop")
    ours = DeviceTable(config, capacity_rows=4096, device=device)
    model = host_table(config)
    for ts in range(3):
        ids = _ids(3000, 2000, device, seed=ts)
        grads = torch.randn(3000, dim, device=device)
        grads[7, dim - 1] = float("nan")
        at = ours.lookup(ids, missing="initializer") if ts % 2 else ids
        done = ours.apply_gradients(at, grads, ts=ts)
        assert repr(done) == repr(model.apply_gradients(ids.cpu(), grads.cpu(), ts=ts))
    assert everything(ours) == everything(model)


@pytest.mark.parametrize("dim", [300, 1024])
@pytest.mark.parametrize("rule", ["adam", "rowwise"])
def test_rows_of_several_warps_are_read_before_they_are_written(
    device: torch.device, dim: int, rule: str
) -> None:
    """Every warp reads the time and the one number of a row; one that lagged read what was new."""
    optimizer = optimizers.Adam(lr=0.01) if rule == "adam" else optimizers.RowAdagrad(lr=0.01)
    config = table_config(optimizer, dim=dim, init=initializers.Uniform(0.05))
    ours, model = DeviceTable(config, capacity_rows=1 << 15, device=device), host_table(config)
    for turn in range(4):
        ids = torch.randperm(20_000, device=device)[:12_000] + 2_000 * turn
        grads = torch.randn(len(ids), dim, device=device)
        for keys in (ids, TableKeys(ids, (0, len(ids)), distinct=True)):  # two kernels
            ours.apply_gradients(keys, grads)
            model.apply_gradients(ids.cpu(), grads.cpu())
    ids = torch.arange(28_000)
    found, wanted = ours.lookup(ids.to(device)).rows.cpu(), model.lookup(ids).rows
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_one_id_may_fill_a_batch(device: torch.device) -> None:
    """Added in pieces: the twin's bits, and the host table's value up to the order."""
    table = _table(device, dim=4, rows=64)
    ids, grads = torch.full((50_000,), 7), torch.randn(50_000, 4)
    there = (ids.to(device), grads.to(device))
    grouped = group(there[0])
    sums, _ = sum_gradients.sum_gradients(grouped, there[1])
    wanted, _ = kernels_table.sum_gradients(group(ids), grads)
    assert torch.equal(sums.cpu(), wanted)
    model = host_table(table.config)
    assert repr(table.apply_gradients(*there)) == repr(model.apply_gradients(ids, grads))
    # Of 50,000 numbers of size 1, partial sums reach some hundreds: float32 keeps three places.
    rows = table.lookup(there[0][:1]).rows.cpu(), model.lookup(ids[:1]).rows
    torch.testing.assert_close(*rows, rtol=1e-4, atol=0.02)


def test_rows_beyond_2_to_31_floats_are_reached(device: torch.device) -> None:
    rows = 40_000_000  # 10 GB of values
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("THIS GPU HAS TOO LITTLE MEMORY for rows beyond 2**31 floats")
    table = _table(device, dim=64, rows=rows)
    ids = _ids(1 << 20, 2**40, device)
    values = torch.randn(len(ids), 64, device=device)
    ids, at = torch.unique(ids, return_inverse=True)
    kept = torch.empty(len(ids), 64, device=device).index_copy_(0, at, values)
    assert table.assign(ids, kept).inserted == len(ids)
    found = table.lookup(ids)
    assert torch.equal(found.rows_of(), kept)
    assert found.slots is not None
    assert int(found.slots.max()) * 64 > 2**31
