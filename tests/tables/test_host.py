from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
import torch

from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import InputError, ServingTableError
from hedgerow.tables import compressors, initializers, monolith_rules, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.optimizers import Polynomial
from hedgerow.tables.store import Entries, RowStore, TableKeys

from ..support import EXTREME_IDS, entries_of, everything, make_table, table_config


def _ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_a_host_table_is_a_row_store() -> None:
    store: RowStore = make_table()
    keys = TableKeys(_ids(1, 2), (0, 2))
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
    adagrad = monolith_rules.MonolithAdagrad(learning_rate=0.5)
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
    clock = ManualClock(2**40)
    table = HostTable(table_config(), clock=clock)
    row = torch.ones(1, 4)
    table.assign(_ids(1), row, ts=30)
    table.assign_add(_ids(2), row, ts=2**40)
    table.apply_gradients(_ids(1), row, ts=10)
    clock.set(50)
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
        monolith_rules.MonolithFtrl(warmup_steps=10),
        monolith_rules.GroupFtrl(warmup_steps=10),
        monolith_rules.GroupAdagrad(warmup_steps=10),
        monolith_rules.MonolithMomentum(warmup_steps=10),
        monolith_rules.MonolithAdam(warmup_steps=10),
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


def test_restore_takes_the_last_of_equal_ids_with_its_own_time() -> None:
    table = make_table(optimizers.Adagrad(), dim=1)
    states = [{"sum": torch.tensor([[1.0], [2.0], [3.0]])}]
    rows = torch.tensor([[5.0], [6.0], [7.0]])
    found = torch.ones(3, dtype=torch.bool)
    table.restore(Entries(_ids(4, 8, 4), found, rows, states, _ids(10, 20, 30)))
    back = table.entries(_ids(4, 8))
    assert back.rows.tolist() == [[7.0], [6.0]]
    assert back.states[0]["sum"].tolist() == [[3.0], [2.0]]
    assert back.ts.tolist() == [30, 20]
    assert table.max_ts() == 30


def _entries(rows: torch.Tensor, ts: int = 0, **states: torch.Tensor) -> Entries:
    n = len(rows)
    times = torch.full((n,), ts)
    return Entries(torch.arange(n), torch.ones(n, dtype=torch.bool), rows, [states], times)


def test_restore_refuses_damaged_rows_states_and_times() -> None:
    table = make_table(optimizers.Adam(), dim=2)
    table.assign(_ids(0), torch.ones(1, 2))
    before = everything(table)
    zeros = torch.zeros(1, 2)
    good = {"exp_avg": zeros, "exp_avg_sq": zeros, "step": torch.zeros(1)}
    for rows, states, ts in (
        (torch.tensor([[1.0, float("nan")]]), good, 0),
        (torch.ones(1, 3), good, 0),
        (torch.ones(1, 2), {**good, "exp_avg": zeros + float("nan")}, 0),
        (torch.ones(1, 2), {**good, "exp_avg_sq": zeros - 1}, 0),
        (torch.ones(1, 2), {**good, "step": torch.tensor([-1.0])}, 0),
        (torch.ones(1, 2), {**good, "step": torch.zeros(1, 2)}, 0),
        (torch.ones(1, 2), {**good, "extra": zeros}, 0),
        (torch.ones(1, 2), good, -5),
    ):
        with pytest.raises(InputError):
            table.restore(_entries(rows, ts, **states))
    assert everything(table) == before
    table.restore(_entries(torch.ones(1, 2), **good))


def test_restoring_a_zero_row_follows_skip_zero() -> None:
    segment = Segment(2, compressor=compressors.Fp32())
    table = HostTable(TableConfig("s", (segment,), serving=True, skip_zero_embedding=True))
    table.assign(_ids(0), torch.ones(1, 2))
    table.restore(_entries(torch.tensor([[0.0, 0.0], [1.0, 1.0]])))
    assert table.contains(_ids(0, 1)).tolist() == [False, True]
    assert table.stats()["erased"] == 1


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


def test_a_serving_row_that_is_added_to_starts_from_zero_even_in_one_bit() -> None:
    segment = Segment(1, compressor=compressors.OneBit(amplitude=0.1))
    table = HostTable(TableConfig("s", (segment,), serving=True))
    table.assign_add(_ids(1), torch.tensor([[0.05]]))
    assert table.lookup(_ids(1)).rows.item() == pytest.approx(0.1)


def test_what_a_row_cannot_hold_is_dropped_and_counted() -> None:
    for compressor, value in ((compressors.Fp16(), 70000.0), (compressors.Bf16(), 3.4e38)):
        segment = Segment(1, compressor=compressor)
        table = HostTable(TableConfig("s", (segment,), serving=True))
        assert table.assign(_ids(1, 2), torch.tensor([[value], [1.0]])).dropped == 1
        assert table.assign_add(_ids(2), torch.tensor([[value]])).dropped == 1
        assert table.lookup(_ids(1, 2)).rows.tolist() == [0.0, 1.0]
        table.restore(entries_of(table))
    table = make_table(dim=1)
    table.assign(_ids(1), torch.tensor([[3e38]]))
    assert table.assign_add(_ids(1), torch.tensor([[3e38]])).dropped == 1
    table.restore(entries_of(table))


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


def test_room_asked_for_is_there_from_the_start() -> None:
    table = make_table(initial_capacity=100_000, dim=1)
    start = table.memory().index_bytes
    assert start > 100_000 * 12
    ids = torch.randint(-(2**63), 2**63 - 1, (90_000,))
    table.assign(ids, torch.ones(len(ids), 1))
    assert table.memory().index_bytes < 1.1 * start


def test_searches_stay_short_through_growth_and_churn() -> None:
    table = make_table(dim=1)
    ids = torch.randint(-(2**63), 2**63 - 1, (40_000,))
    for at in range(0, 40_000, 4_000):
        table.assign(ids[at : at + 8_000], torch.ones(len(ids[at : at + 8_000]), 1))
        table.erase(ids[at : at + 4_000])
        assert table.stats()["longest_search"] < 40
    assert table.stats()["rows"] == 0
    assert table.stats()["longest_search"] == 1


def test_ids_in_an_unlucky_stride_are_found_as_fast_as_any() -> None:
    """A stride that one round of the table's mixer would put into a corner of one shard."""
    start, stride = 0x123456789ABCDEF0, 2070566913
    crafted = [((start + j * stride) ^ 0x9E3779B97F4A7C15) & (2**64 - 1) for j in range(20_000)]
    ids = torch.tensor([k - 2**64 if k >= 2**63 else k for k in crafted])
    table = make_table(dim=1)
    table.assign(ids, torch.ones(len(ids), 1))
    assert table.stats()["longest_search"] < 40
    assert table.stats()["load_factor"] > 0.5


def test_scans_of_any_slice_give_every_row_once() -> None:
    table = make_table(dim=1)
    ids = torch.arange(300)
    table.assign(ids, ids[:, None].float())
    for rows in (1, 2, 7, 299, 1000, None):
        parts = list(table.scan(rows))
        seen = torch.cat([part.ids for part in parts])
        assert sorted(seen.tolist()) == list(range(300))
        for part in parts:
            assert torch.equal(part.rows[:, 0], part.ids.float())
    with pytest.raises(InputError, match="rows is 0"):
        table.scan(0)  # at the call, not at the first slice


def test_a_table_of_the_widest_rows_can_be_scanned() -> None:
    table = make_table(optimizers.Adam(), dim=65536)
    table.assign(_ids(1, 2), torch.ones(2, 65536))
    assert sum(len(part) for part in table.scan()) == 2
    assert table.memory().slack_bytes < table.memory().row_bytes


def test_tables_say_how_to_copy_them() -> None:
    table = make_table()
    for copy_with in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match="restore"):
            copy_with(table)
    config = table.config
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


def test_numpy_numbers_are_numbers() -> None:
    table = make_table()
    row = torch.ones(1, 4)
    table.apply_gradients(_ids(1), row, step=np.int64(3), ts=np.int32(4), rates=[np.float32(0.5)])
    assert table.max_ts() == 4
    segment = Segment(np.int64(4), initializers.Uniform(np.float32(0.5)), optimizers.Sgd())
    assert HostTable(TableConfig("t", (segment,))).layout.dim == 4
    assert json.loads(json.dumps(segment.to_dict()))["dim"] == 4


def test_a_reused_output_is_seen_by_autograd() -> None:
    table = make_table()
    out = torch.ones(1, 4)
    weight = torch.ones(1, 4, requires_grad=True)
    product = (weight * out).sum()
    table.lookup(_ids(1), out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with pytest.raises(InputError, match="requires grad"):
        table.lookup(_ids(1), out=weight)


def test_schedules_need_the_step() -> None:
    table = make_table(optimizers.Sgd(lr=Polynomial(0.1, 10)))
    with pytest.raises(InputError, match="pass step="):
        table.apply_gradients(_ids(1), torch.ones(1, 4))
    table.apply_gradients(_ids(1), torch.ones(1, 4), rates=[0.1])


def test_empty_batches_do_nothing() -> None:
    table = make_table()
    none, rows = torch.empty(0, dtype=torch.int64), torch.empty(0, 4)
    assert repr(table.assign(none, rows)) == "Applied(inserted=0, refused=0, dropped=0)"
    assert table.lookup(none).rows_of().shape == (0, 4)
    assert table.erase(none).tolist() == []
    assert table.reinitialize(none).tolist() == []
    assert list(table.scan()) == []
    assert table.size() == 0
