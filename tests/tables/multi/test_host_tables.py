"""K tables as one store: order, offsets, empty tables, K = 1, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import InputError
from hedgerow.tables import initializers
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import RowStore, TableKeys

from ...support import EXTREME_IDS, everything, make_table, table_config
from .many import CONFIGS, DIMS, NAMES, all_rows

NO_IDS = torch.empty(0, dtype=torch.int64)


@pytest.fixture
def store() -> HostTables:
    return HostTables(CONFIGS, clock=ManualClock(50))


def _keys(*lists: list[int]) -> TableKeys:
    splits = [0]
    for ids in lists:
        splits.append(splits[-1] + len(ids))
    flat = [i for ids in lists for i in ids]
    return TableKeys(torch.tensor(flat, dtype=torch.int64), tuple(splits))


def _fill(store: HostTables, ids: list[int]) -> torch.Tensor:
    keys = _keys(ids, ids, ids)
    rows = torch.arange(float(len(ids) * sum(DIMS)))
    store.assign(keys, rows, ts=7)
    return rows


def test_many_host_tables_are_a_row_store(store: HostTables) -> None:
    rows: RowStore = store
    keys = _keys([1], [1, 2], [])
    assert rows.assign(keys, torch.arange(7.0)).inserted == 3
    found = rows.lookup(keys)
    assert torch.equal(found.rows, torch.arange(7.0))
    assert found.rows_of(1).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found.rows_of(2).shape == (0, 3)
    rows.apply_gradients(found, torch.ones(7))
    assert rows.lookup(keys).rows_of(0).tolist() == [[-0.25]]
    assert rows.size() == 3
    assert rows.table(1).size() == 2


def test_tables_stand_in_byte_order_whatever_order_the_configs_have(store: HostTables) -> None:
    assert store.names == NAMES
    assert store.dims == DIMS
    assert [table.config.name for table in store.tables] == list(NAMES)
    assert HostTables(dict(reversed(CONFIGS.items()))).names == NAMES


def test_every_id_may_be_in_every_table(store: HostTables) -> None:
    rows = _fill(store, EXTREME_IDS)
    keys = _keys(EXTREME_IDS, EXTREME_IDS, EXTREME_IDS)
    assert torch.equal(store.lookup(keys).rows, rows)
    assert store.size() == 3 * len(EXTREME_IDS)
    assert store.max_ts() == 7


def test_a_table_without_keys_is_left_alone_and_its_time_too(store: HostTables) -> None:
    _fill(store, [1])
    before = all_rows(store)
    store.apply_gradients(_keys([], [1], []), torch.ones(3), ts=99)
    after = all_rows(store)
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] != before[1]
    assert [table.max_ts() for table in store.tables] == [7, 99, 7]
    assert store.max_ts() == 99


def test_a_call_without_any_key_does_nothing(store: HostTables) -> None:
    none = _keys([], [], [])
    assert store.lookup(none).rows.shape == (0,)
    assert store.apply_gradients(none, torch.empty(0), ts=9).inserted == 0
    assert store.assign(none, torch.empty(0), ts=9).inserted == 0
    assert store.contains(none).tolist() == store.erase(none).tolist() == []
    assert store.reinitialize(none).tolist() == []
    assert store.size() == store.max_ts() == 0


def test_rates_follow_the_order_of_the_tables_and_their_segments(store: HostTables) -> None:
    keys = _keys([1], [1], [1])
    store.assign(keys, torch.zeros(7))
    store.apply_gradients(keys, torch.ones(7), rates=[1.0, 0.0, 4.0, 0.0])
    assert store.lookup(keys).rows.tolist() == [-1, 0, 0, 0, -4, 0, 0]


def test_a_rate_that_is_a_function_is_asked_once(store: HostTables) -> None:
    asked = []

    def rate(step: int) -> float:
        asked.append(step)
        return 1.0

    store.apply_gradients(_keys([1], [1], []), torch.ones(4), rates=[rate, 0, 0, 0], step=5)
    assert asked == [5]


def test_a_lookup_writes_into_the_callers_memory_and_marks_it_changed(store: HostTables) -> None:
    rows = _fill(store, [1, 2])
    out = torch.full((14,), 9.0)
    version = out._version
    found = store.lookup(_keys([1, 2], [1, 2], [1, 2]), out=out)
    assert found.rows.data_ptr() == out.data_ptr()
    assert torch.equal(out, rows)
    assert out._version > version


def test_absent_ids_give_zeros_or_their_first_values(store: HostTables) -> None:
    keys = _keys([5], [5], [5])
    assert store.lookup(keys).rows.tolist() == [0.0] * 7
    promised = store.lookup(keys, missing="initializer").rows.clone()
    assert store.size() == 0
    store.assign_add(keys, torch.zeros(7))
    assert torch.equal(store.lookup(keys).rows, promised)


def test_contains_erase_and_reinitialize_answer_in_the_order_of_the_keys(store: HostTables) -> None:
    store.assign(_keys([1], [2], [3]), torch.ones(7))
    keys = _keys([1, 2], [1, 2], [3, 3])
    assert store.contains(keys).tolist() == [True, False, False, True, True, True]
    assert store.reinitialize(keys).tolist() == [1, 0, 0, 1, 1, 1]
    assert store.table(0).entries(torch.tensor([2])).ts.tolist() == [50]
    assert store.erase(keys).tolist() == [True, True, True, True, True, False]
    assert store.size() == 0


def test_whole_rows_and_scans_are_asked_of_one_table(store: HostTables) -> None:
    _fill(store, [1, 2])
    assert store.table(2).entries(torch.tensor([2])).rows.shape == (1, 3)
    (part,) = store.table(1).scan()
    assert sorted(part.ids.tolist()) == [1, 2]
    with pytest.raises(InputError, match=r"3 tables.*store.table\(k\).entries"):
        store.entries(_keys([1], [], []))
    with pytest.raises(InputError, match=r"store.table\(k\).scan"):
        store.scan()
    with pytest.raises(InputError, match="table 3"):
        store.table(3)


def test_a_store_of_one_table_is_that_table() -> None:
    alone, one = make_table(name="t", seed=None), HostTables({"t": table_config(seed=None)})
    ids = torch.tensor([3, 4, 3])
    for store in (alone, one):
        store.apply_gradients(ids, torch.ones(3, 4), ts=5)
        store.apply_gradients(TableKeys.of_one(ids), torch.ones(12))
        out = torch.empty(3, 4)
        assert store.lookup(ids, out=out).rows.data_ptr() == out.data_ptr()
        assert store.lookup(ids, out=torch.empty(12)).rows_of().tolist() == out.tolist()
        assert store.table(0).size() == 2
        with pytest.raises(InputError, match="table 1"):
            store.table(1)
    assert everything(alone) == everything(one.table())
    assert one.entries(ids).rows.tolist() == alone.entries(ids).rows.tolist()
    assert sum(len(part) for part in one.scan()) == len(one) == 2


def test_clear_empties_every_table(store: HostTables) -> None:
    _fill(store, [1, 2])
    store.clear()
    assert store.size() == 0
    assert repr(store) == "HostTables(rows of 'item': 0, 'user': 0, 'Ü': 0)"


def test_threads_share_a_store() -> None:
    config = table_config(init=initializers.Zeros(), dim=8)
    store = HostTables({"a": config, "b": config})
    ids = torch.arange(5000)
    keys = TableKeys(torch.cat([ids, ids]), (0, 5000, 10000))
    store.assign(keys, torch.zeros(80_000))

    def learns(_: int) -> None:
        store.apply_gradients(keys, torch.full((80_000,), -1.0), rates=[1.0, 1.0])

    def reads(_: int) -> None:
        found = store.lookup(keys)
        for k in range(2):
            rows = found.rows_of(k)
            assert bool((rows == rows[:, :1]).all()), "a row was read in the middle of its update"

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit((learns, reads)[i % 2], i) for i in range(40)]:
            done.result()
    assert bool((store.lookup(keys).rows == 20.0).all())
