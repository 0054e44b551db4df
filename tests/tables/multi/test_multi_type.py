"""One table a slot: dicts in and out, and the fused calls of N source shards."""

from __future__ import annotations

import pytest
import torch

from hedgerow.core.errors import NotSupportedError
from hedgerow.monolith.tables.multi_type import MultiTypeTable
from hedgerow.tables import initializers, optimizers
from hedgerow.tables.admission import Count

from ...support import everything, table_config
from .many import CONFIGS, DIMS, NAMES, all_rows, apart


def _ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.fixture
def table() -> MultiTypeTable:
    return MultiTypeTable(CONFIGS)


def test_slots_are_independent_tables_and_the_unlisted_are_untouched(table: MultiTypeTable) -> None:
    table.assign({"user": (_ids(1), torch.ones(1, 3)), "item": (_ids(1), torch.ones(1, 1))}, ts=3)
    before = all_rows(table.store)
    table.assign_add({"user": (_ids(1), torch.ones(1, 3))}, ts=9)
    found = table.lookup({"user": _ids(1, 2), "item": _ids(1)})
    assert list(found) == ["user", "item"]
    assert found["user"].tolist() == [[2, 2, 2], [0, 0, 0]]
    assert found["item"].tolist() == [[1]]
    assert all_rows(table.store)[0] == before[0]
    assert [table.table(name).max_ts() for name in NAMES] == [3, 9, 0]
    assert (table.size(), table.max_ts()) == (2, 9)


def test_dims_stand_in_byte_order_of_the_slots(table: MultiTypeTable) -> None:
    assert table.names == NAMES
    assert table.dims == DIMS


def test_rates_and_counts_go_by_slot(table: MultiTypeTable) -> None:
    ids, grad = _ids(1), torch.ones(1, 1)
    table.assign({"item": (ids, torch.zeros(1, 1))})
    table.apply_gradients({"item": (ids, grad)}, rates={"item": [2.0], "user": [1.0]})
    table.apply_gradients({"item": (ids, grad)}, counts={"item": _ids(3)})
    assert table.lookup({"item": ids})["item"].tolist() == [[-2.25]]


def test_equal_ids_are_summed_or_stepped_one_by_one() -> None:
    config = table_config(optimizers.Adagrad(lr=1.0), init=initializers.Zeros(), dim=1)
    rows = []
    for per_occurrence in (False, True):
        table = MultiTypeTable({"a": config})
        grads = torch.tensor([[1.0], [2.0]])
        table.apply_gradients({"a": (_ids(1, 1), grads)}, per_occurrence=per_occurrence)
        rows.append(table.lookup({"a": _ids(1)})["a"].item())
    assert rows[0] == pytest.approx(-1.0)
    assert rows[1] == pytest.approx(-1.0 - 2 / 5**0.5)


def test_slots_of_one_config_start_from_different_values() -> None:
    config = table_config(seed=None)
    table = MultiTypeTable({"a": config, "b": config})
    found = table.lookup({"a": _ids(1), "b": _ids(1)}, missing="initializer")
    assert not torch.equal(found["a"], found["b"])


def test_empty_batches_and_empty_slots_do_nothing(table: MultiTypeTable) -> None:
    assert table.lookup({}) == {}
    assert table.lookup({"user": _ids()})["user"].shape == (0, 3)
    assert table.assign({}).inserted == 0
    assert table.apply_gradients({"user": (_ids(), torch.empty(0, 3))}, ts=9).inserted == 0
    assert (table.size(), table.max_ts()) == (0, 0)


def test_reinitialize_says_where_to_go(table: MultiTypeTable) -> None:
    with pytest.raises(NotSupportedError, match="NativeMultiTable"):
        table.reinitialize("user", _ids(1))


def test_a_fused_lookup_gives_the_rows_in_the_order_of_the_ids(table: MultiTypeTable) -> None:
    table.assign({"user": (_ids(1, 2), torch.arange(6.0).view(2, 3))})
    table.assign({"item": (_ids(1, 2), torch.tensor([[10.0], [20.0]]))})
    sizes = _ids(1, 2, 0, 2, 0, 1)  # two shards of item, user, Ü
    got = table.fused_lookup(_ids(2, 1, 2, 1, 9, 1), sizes, shards=2)
    assert got.embeddings.tolist() == [20, 0, 1, 2, 3, 4, 5, 10, 0, 0, 0, 0]
    assert got.id_offsets.tolist() == [0, 1, 3, 3, 5, 5, 6]
    assert got.emb_offsets.tolist() == [0, 1, 7, 7, 9, 9, 12]
    assert got.emb_splits.tolist() == [7, 5]
    assert table.size() == 4


def test_shards_update_one_after_the_other_in_ascending_order(table: MultiTypeTable) -> None:
    ids, sizes = _ids(1, 1, 1, 2, 1), _ids(1, 1, 0, 1, 2, 0)
    grads = torch.arange(1.0, 12.0)
    table.fused_apply(ids, sizes, 2, grads, ts=4)
    item, user, other = apart()
    for own, step in ((item, (ids[:1], grads[:1])), (user, (ids[1:2], grads[1:4]))):
        own.apply_gradients(*step, ts=4)
    item.apply_gradients(ids[2:3], grads[4:5], ts=4)
    user.apply_gradients(ids[3:], grads[5:], ts=4)
    assert all_rows(table.store) == [everything(t) for t in (item, user, other)]


def test_a_fused_call_without_ids_has_offsets_of_zero(table: MultiTypeTable) -> None:
    sizes = torch.zeros(6, dtype=torch.int64)
    got = table.fused_lookup(_ids(), sizes, shards=2)
    assert got.embeddings.shape == (0,)
    assert got.id_offsets.tolist() == got.emb_offsets.tolist() == [0] * 7
    assert got.emb_splits.tolist() == [0, 0]
    assert table.fused_apply(_ids(), sizes, 2, torch.empty(0)).inserted == 0


def test_fused_rates_follow_the_order_of_the_tables(table: MultiTypeTable) -> None:
    table.assign({"item": (_ids(1), torch.zeros(1, 1))})
    sizes = _ids(1, 0, 0)
    table.fused_apply(_ids(1), sizes, 1, torch.ones(1), rates=[3.0, 0.1, 0.1, 0.1])
    assert table.lookup({"item": _ids(1)})["item"].tolist() == [[-3.0]]


def test_counts_of_a_fused_call_reach_the_admission_rule_of_their_own_cell() -> None:
    rule = table_config(optimizers.Sgd(lr=1.0), init=initializers.Zeros(), dim=1, admit=Count(3))
    table = MultiTypeTable({"a": rule, "b": rule})
    ids, sizes, grads = _ids(1, 2, 1, 1, 2), _ids(2, 1, 1, 1), torch.ones(5)
    done = table.fused_apply(ids, sizes, 2, grads, counts=_ids(2, 3, 2, 1, 1))
    assert (done.inserted, done.refused) == (
        1,
        4,
    )  # in: 1 of a, by its second shard
    assert list(everything(table.table("a"))) == [1]
    assert table.fused_apply(ids[2:3], _ids(0, 1), 1, grads[:1]).inserted == 1  # b has counted 2
    assert MultiTypeTable({"a": rule, "b": rule}).fused_apply(ids, sizes, 2, grads).inserted == 0
