from __future__ import annotations

import pytest
import torch

from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import InputError, ServingTableError
from hedgerow.tables import compressors, initializers, optimizers, original
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.schedules import Polynomial
from hedgerow.tables.store import RowStore, TableKeys

from ..support import EXTREME_IDS, entries_of, everything, make_table, table_config


def _ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_a_host_table_is_a_row_store() -> None:
    store: RowStore = make_table()
    keys = TableKeys(_ids(1, 2), _ids(0, 2))
    store.assign(keys, torch.ones(2, 4))
    found = store.lookup(keys)
    assert torch.equal(found.rows_of(0), torch.ones(2, 4))
    store.apply_gradients(found, torch.ones(8))  # at a lookup, with flat gradients
    assert torch.allclose(store.lookup(keys).rows, torch.tensor(0.9))


def test_reading_never_inserts() -> None:
    table = make_table()
    ids = torch.tensor(EXTREME_IDS)
    table.lookup(ids)
    table.lookup(ids, missing="initializer")
    table.entries(ids)
    table.contains(ids)
    list(table.scan())
    table.erase(ids)
    assert table.size() == 0


def test_the_first_value_read_is_the_value_the_row_is_born_with() -> None:
    for init in (initializers.Uniform(0.3), initializers.Normal(0.1), initializers.Ones()):
        table = make_table(init=init, dim=5)
        ids = torch.tensor(EXTREME_IDS)
        promised = table.lookup(ids, missing="initializer").rows.clone()
        table.apply_gradients(ids, torch.zeros(len(ids), 5))
        assert torch.equal(table.lookup(ids).rows, promised)


def test_segments_of_one_row_start_from_different_values() -> None:
    segment = Segment(4, initializers.Uniform(1.0), optimizers.Sgd())
    table = HostTable(TableConfig("t", (segment, segment)))
    row = table.lookup(_ids(5), missing="initializer").rows_of()[0]
    assert len(row.unique()) == 8


def test_assignment_keeps_the_optimizer_state() -> None:
    adagrad = original.Adagrad(learning_rate=0.5)
    table = make_table(adagrad, init=initializers.Constant(0.25), dim=2)
    table.apply_gradients(_ids(1), torch.tensor([[2.0, 1.0]]))
    table.assign(_ids(1), torch.full((1, 2), 9.0))
    kept = table.entries(_ids(1))
    assert kept.rows.tolist() == [[9.0, 9.0]]
    torch.testing.assert_close(kept.states[0]["norm"], torch.tensor([[4.1, 1.1]]))


def test_equal_ids_act_in_order() -> None:
    table = make_table(init=initializers.Zeros(), dim=1)
    table.assign(_ids(1, 2, 1), torch.tensor([[1.0], [2.0], [3.0]]))
    assert table.lookup(_ids(1, 2)).rows.tolist() == [3.0, 2.0]
    table.assign_add(_ids(1, 1), torch.tensor([[0.5], [0.25]]))
    assert table.lookup(_ids(1)).rows.tolist() == [3.75]
    assert table.reinitialize(_ids(9, 9, 1)).tolist() == [0, 1, 1]
    assert table.erase(_ids(1, 1, 7)).tolist() == [True, False, False]
    assert table.contains(_ids(1, 2, 9)).tolist() == [False, True, True]


def test_times_follow_writes_and_the_newest_is_remembered() -> None:
    clock = ManualClock(50)
    table = HostTable(table_config(), clock=clock)
    row = torch.ones(1, 4)
    table.assign(_ids(1), row, ts=30)
    table.assign_add(_ids(2), row, ts=2**40)
    table.apply_gradients(_ids(1), row, ts=10)
    table.reinitialize(_ids(3))
    assert table.entries(_ids(1, 2, 3)).ts.tolist() == [10, 2**40, 50]
    assert table.max_ts() == 2**40


def test_reinitializing_does_not_move_the_newest_time() -> None:
    table = HostTable(table_config(), clock=ManualClock(10**9))
    table.assign(_ids(1), torch.ones(1, 4), ts=5)
    table.reinitialize(_ids(1))
    assert table.max_ts() == 5


def test_rates_come_from_the_call_the_table_or_the_optimizer() -> None:
    sgd = optimizers.Sgd(lr=Polynomial(1.0, 10, end=2.0))
    table = HostTable(table_config(sgd, dim=1, init=initializers.Zeros()))
    one = torch.ones(1, 1)
    table.apply_gradients(_ids(1), one, step=1)
    assert table.lookup(_ids(1)).rows.item() == pytest.approx(-1.1)
    table.apply_gradients(_ids(2), one, rates=[0.5], step=1)
    assert table.lookup(_ids(2)).rows.item() == -0.5
    config = table_config(sgd, dim=1, init=initializers.Zeros())
    other = HostTable(config, rates=[lambda step: float(step)])
    other.apply_gradients(_ids(1), one, step=4)
    assert other.lookup(_ids(1)).rows.item() == -4.0


def test_warm_up_starts_at_zero_without_spoiling_a_row() -> None:
    for optimizer in (
        original.Ftrl(warmup_steps=10),
        original.GroupFtrl(warmup_steps=10),
        original.GroupAdagrad(warmup_steps=10),
        original.Momentum(warmup_steps=10),
        original.Adam(warmup_steps=10),
    ):
        table = make_table(optimizer, dim=3)
        first = table.lookup(_ids(1), missing="initializer").rows.clone()
        table.apply_gradients(_ids(1), torch.ones(1, 3), step=0)
        assert torch.equal(table.lookup(_ids(1)).rows, first), optimizer.kind
        table.apply_gradients(_ids(1), torch.ones(1, 3), step=1)
        moved = table.lookup(_ids(1)).rows
        assert bool(moved.isfinite().all())
        assert not torch.equal(moved, first), optimizer.kind


def test_a_scan_gives_back_what_restore_takes() -> None:
    table = make_table(optimizers.Adam(lr=0.1), dim=3)
    ids = torch.randint(-(2**63), 2**63 - 1, (500,))
    for step in range(3):
        table.apply_gradients(ids, torch.randn(500, 3), step=step, ts=step)
    other = make_table(optimizers.Adam(lr=0.1), dim=3)
    for part in table.scan(64):
        assert len(part) <= 64
        other.restore(part)
    assert everything(other) == everything(table)
    assert other.max_ts() == table.max_ts()


def test_restore_checks_states_by_name_and_shape() -> None:
    table = make_table(optimizers.Adam(), dim=3)
    table.assign(_ids(1), torch.ones(1, 3))
    saved = entries_of(table)
    other = make_table(optimizers.Adagrad(), dim=3)
    with pytest.raises(InputError, match=r"'sum' of segments.0. is missing"):
        other.restore(saved)
    absent = table.entries(_ids(1, 2))
    with pytest.raises(InputError, match="not found"):
        table.restore(absent)
    assert other.size() == 0


def test_a_serving_table_stores_what_its_compressors_keep() -> None:
    segments = (
        Segment(2, compressor=compressors.Fp16()),
        Segment(2, compressor=compressors.FixedR8(1.0)),
    )
    table = HostTable(TableConfig("s", segments, serving=True))
    table.assign(_ids(1), torch.tensor([[0.1, 0.2, 0.0109375, 5.0]]))
    row = table.lookup(_ids(1)).rows.tolist()
    assert row == [0.0999755859375, 0.199951171875, 0.0078125, 0.9921875]
    table.assign_add(_ids(1, 2), torch.full((2, 4), 0.25))
    assert table.lookup(_ids(2)).rows.tolist() == [0.25] * 4
    assert table.layout.row_bytes == 6
    for verb in (
        lambda: table.apply_gradients(_ids(1), torch.ones(1, 4)),
        lambda: table.reinitialize(_ids(1)),
        lambda: table.lookup(_ids(1), missing="initializer"),
    ):
        with pytest.raises(ServingTableError, match="serving table"):
            verb()


def test_a_subnormal_norm_counts_as_a_zero_row() -> None:
    segment = Segment(2, compressor=compressors.Fp32())
    config = TableConfig("s", (segment,), serving=True, skip_zero_embedding=True)
    table = HostTable(config)
    table.assign(_ids(1, 2, 3), torch.tensor([[1e-20, 0.0], [1e-18, 0.0], [0.0, -0.0]]))
    assert table.contains(_ids(1, 2, 3)).tolist() == [False, True, False]


def test_training_sees_rows_through_their_compressor_but_stores_them_raw() -> None:
    table = make_table(optimizers.Sgd(lr=1.0), 1, initializers.Zeros(), compressors.FixedR8(1.0))
    table.apply_gradients(_ids(1), torch.tensor([[-0.0109375]]))
    assert table.lookup(_ids(1)).rows.item() == 0.0078125
    assert table.entries(_ids(1)).rows.item() == pytest.approx(0.0109375)


def test_a_one_bit_table_wants_the_step() -> None:
    table = make_table(compressor=compressors.OneBit())
    with pytest.raises(InputError, match="pass step="):
        table.lookup(_ids(1))
    assert table.lookup(_ids(1), step=0).rows.tolist() == [0.0] * 4


def test_stats_count_what_happened() -> None:
    table = make_table(not_finite="drop", dim=2)
    bad = torch.tensor([[1.0, float("nan")], [1.0, 1.0]])
    assert repr(table.apply_gradients(_ids(1, 2), bad)) == (
        "Applied(inserted=1, refused=0, dropped=1)"
    )
    table.erase(_ids(2, 3))
    table.reinitialize(_ids(4))
    stats = table.stats()
    assert (stats["inserted"], stats["dropped"], stats["erased"]) == (2, 1, 1)
    assert stats["rows"] == len(table) == 1
    assert stats["row_bytes"] == 2 * 4 + 8
    assert stats["uncompressed_bytes"] == 2 * 4
    assert repr(table) == "HostTable('test', 1 rows of 2 x Sgd(lr=0.1, weight_decay=0.0))"
    assert stats["index_bytes"] > 0


def test_closing_frees_the_shared_name() -> None:
    table = HostTable(table_config(), shared_name="host/closed")
    table.assign(_ids(1), torch.ones(1, 4))
    table.close()
    again = HostTable(table_config(), shared_name="host/closed")
    assert again.size() == 0
    assert table.size() == 0


def test_empty_batches_do_nothing() -> None:
    table = make_table()
    none, rows = torch.empty(0, dtype=torch.int64), torch.empty(0, 4)
    assert repr(table.assign(none, rows)) == "Applied(inserted=0, refused=0, dropped=0)"
    table.apply_gradients(none, rows, ts=9)
    assert table.lookup(none).rows_of().shape == (0, 4)
    assert table.erase(none).tolist() == []
    assert table.reinitialize(none).tolist() == []
    assert list(table.scan()) == []
    assert table.size() == 0
