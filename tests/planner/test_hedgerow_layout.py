"""The layout `hedgerow` against real tables: what is planned is what they take."""

from __future__ import annotations

import pytest
import torch

from hedgerow.core.errors import UnknownNameError
from hedgerow.kernels.layout import LANES, Arrays
from hedgerow.planner.problem.table_spec import TableSpec
from hedgerow.planner.sizes.layout import HEDGEROW, row_bytes
from hedgerow.tables.admission import SlidingFilter
from hedgerow.tables.config import Optimizer, Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.layout import RowLayout
from hedgerow.tables.local_table import table_stats
from hedgerow.tables.optimizers import Adagrad, Adam, RowAdagrad, Sgd

from .words import ONE_CARD, TWO_CARDS, stored


def _filled(dim: int, optimizer: Optimizer, rows: int, capacity: int) -> HostTable:
    segments = (Segment(dim, Zeros(), optimizer),)
    table = HostTable(TableConfig("t", segments, initial_capacity=capacity))
    for ids in (torch.arange(rows) * 977).split(50_000):
        table.assign(ids, torch.zeros(len(ids), dim))
    return table


def _planned(dim: int, optimizer: Optimizer, rows: int) -> int:
    spec = TableSpec(name="t", rows=rows, dim=dim, optimizer=optimizer.kind)
    return stored("HOST_ONLY", "0", spec=spec, layout=HEDGEROW).ddr


def _taken(table: HostTable) -> int:
    """Bytes of rows and index; not the table's share of what the process keeps for reuse."""
    found = table_stats(table)
    return int(found["total_bytes"]) - int(found["other_bytes"])


@pytest.mark.parametrize(
    ("dim", "optimizer", "rows"),
    [
        *((16, Adagrad(), 200_000), (32, Adam(), 200_000), (64, RowAdagrad(), 50_000)),
        *((10, Sgd(lr=0.1), 200_000), (16, Adagrad(), 120_000), (16, Adagrad(), 290_000)),
    ],
)
def test_a_host_table_takes_what_is_planned(dim: int, optimizer: Optimizer, rows: int) -> None:
    real = _taken(_filled(dim, optimizer, rows, rows))
    planned = _planned(dim, optimizer, rows)
    assert real <= planned <= real * 1.02


@pytest.mark.parametrize("rows", [1, 100, 3_000, 100_000, 230_000])
@pytest.mark.parametrize("known", [False, True])
def test_no_host_table_takes_more_than_planned(rows: int, known: bool) -> None:
    table = _filled(4, Adagrad(), rows, rows if known else 1)
    assert _taken(table) <= _planned(4, Adagrad(), rows)


@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (100, 6), (5000, 16)])
def test_a_device_table_takes_what_is_planned(rows: int, dim: int) -> None:
    spec = TableSpec(name="t", rows=rows, dim=dim, optimizer="sgd")
    planned = stored("HBM_ONLY", "1.0", spec=spec, layout=HEDGEROW)
    slots = -(-rows * 5 // 4)  # up to there every id finds room
    arrays = Arrays.make(-(-slots // LANES), dim, torch.device("cpu"))
    assert planned.hbm_values == arrays.values.nbytes
    assert planned.metadata == arrays.index.nbytes
    assert (planned.hbm, planned.ddr) == (planned.hbm_values + planned.metadata, 0)


def test_a_table_in_both_memories_has_its_host_index_on_the_host() -> None:
    spec = TableSpec(name="t", rows=17_000, dim=4, optimizer="sgd")
    cached = stored("CACHING", "0.1", spec=spec, layout=HEDGEROW)
    # 133 buckets, four fifths full, and the slots beside them: values, id and time, marks.
    assert cached.hbm == (133 * 16 + 2) * (16 + 16 + 5) + 14 * 16
    assert cached.ddr == stored("HOST_ONLY", "0", spec=spec, layout=HEDGEROW).ddr
    split = stored("HYBRID", "0.1", spec=spec, layout=HEDGEROW)
    counts = split.hbm - (125 * 16 + 2) * (16 + 16) - 14 * 16  # 0.85 full
    assert 1700 * 32 <= counts <= 1702 * 32  # of its rows; two slots beside the buckets count, too
    assert split.hbm > cached.hbm  # counts of uses are more than marks
    assert split.ddr < cached.ddr


@pytest.mark.parametrize("ids", [500, 40_000, 200_000])
@pytest.mark.parametrize("capacity", [6_000, 600_000, 300_000_000])
def test_no_counter_takes_more_than_planned(ids: int, capacity: int) -> None:
    counter = SlidingFilter(capacity_ids=capacity)
    for _ in range(3):
        counter.add(torch.arange(ids), table="t")
    spec = TableSpec(name="t", rows=10, dim=4, counter_rows=ids)
    planned = stored("HOST_ONLY", "0", spec=spec, layout=HEDGEROW, topology=ONE_CARD)
    assert sum(size * cells for size, cells, _ in counter.meta().arrays) <= planned.counter


def test_a_rank_counts_its_share() -> None:
    spec = TableSpec(name="t", rows=10, dim=4, counter_rows=1_000_000)
    one, half = (
        stored("HOST_ONLY", "0", spec=spec, layout=HEDGEROW, topology=topology).counter
        for topology in (ONE_CARD, TWO_CARDS)
    )
    assert one / 2 < half < one / 2 * 1.01


@pytest.mark.parametrize("kind", sorted(Optimizer.members()))
def test_rows_are_as_wide_as_our_optimizers_make_them(kind: str) -> None:
    dim = 1 if kind == "batch_softmax" else 24
    config = TableConfig("t", (Segment(dim, Zeros(), Optimizer.members()[kind]()),))
    width = RowLayout(config).row_bytes
    spec = TableSpec(name="t", rows=10, dim=dim, optimizer=kind, dtype="fp16")
    assert row_bytes(spec, HEDGEROW) == -(-width // 16) * 16


def test_an_optimizer_that_we_do_not_have_is_named() -> None:
    spec = TableSpec(name="t", rows=10, dim=24, optimizer="adan")
    with pytest.raises(UnknownNameError, match=r"unknown optimizer 'adan'.*mean 'adam'"):
        row_bytes(spec, HEDGEROW)
