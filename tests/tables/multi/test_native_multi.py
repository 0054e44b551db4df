"""All tables in one object: reinitialize by slot, raw calls, several requests in one batch."""

from __future__ import annotations

import pytest
import torch

from hedgerow.core.clock import ManualClock
from hedgerow.core.ids import Ragged
from hedgerow.monolith.tables.multi_type import NativeMultiTable
from hedgerow.tables import initializers, optimizers

from ...support import everything, table_config
from .many import CONFIGS, NAMES, all_rows, apart


def _ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.fixture
def table() -> NativeMultiTable:
    return NativeMultiTable(CONFIGS)


def _filled(table: NativeMultiTable) -> NativeMultiTable:
    """Row of id i in table k: 100 k + i in every column."""
    ids = _ids(1, 2, 3)
    table.assign(
        {
            name: (ids, (100.0 * k + ids).float()[:, None].repeat(1, dim))
            for k, (name, dim) in enumerate(zip(table.names, table.dims, strict=True))
        }
    )
    return table


def test_reinitialize_by_slot_and_of_an_unknown_one() -> None:
    config = table_config(init=initializers.Ones(), dim=2)
    table = NativeMultiTable(
        dict.fromkeys(("slot2", "not_used", "slot0", "slot1"), config), clock=ManualClock(77)
    )
    ids = _ids(2, 3)
    table.assign_add({"slot2": (ids, torch.ones(2, 2)), "slot0": (ids, torch.ones(2, 2))})
    before = all_rows(table.store)
    assert table.reinitialize("slot2", _ids(1, 2, 3)).tolist() == [0, 1, 1]
    assert table.lookup({"slot2": _ids(1, 2, 3)})["slot2"].tolist() == [[1, 1]] * 3
    assert table.table("slot2").entries(_ids(1)).ts.tolist() == [77]
    after = all_rows(table.store)
    assert after[:3] == before[:3]
    unknown = table.reinitialize("slot3", _ids(1, 2, 3))
    assert unknown.dtype == torch.int8
    assert unknown.tolist() == [-1, -1, -1]
    assert all_rows(table.store) == after


def test_dicts_become_raw_calls_and_back(table: NativeMultiTable) -> None:
    batch = {
        "user": (_ids(5, 6), torch.arange(6.0).view(2, 3)),
        "item": (_ids(5), torch.tensor([[9.0]])),
    }
    ragged, flat = table.dict_to_flat(batch)
    assert ragged.to_lists() == [[5], [5, 6], []]
    assert flat.tolist() == [9, 0, 1, 2, 3, 4, 5]
    same = table.dict_to_ragged({slot: ids for slot, (ids, _) in batch.items()})
    assert same.to_lists() == ragged.to_lists()
    back = table.flat_to_dict(ragged, flat)
    assert tuple(back) == NAMES
    assert back["Ü"].shape == (0, 3)
    for slot, (_, rows) in batch.items():
        assert torch.equal(back[slot], rows)
        assert back[slot].untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    assert table.dict_to_ragged({}).to_lists() == [[], [], []]
    assert table.dict_to_flat({})[1].tolist() == []


def test_a_raw_call_does_what_the_call_by_slot_does(table: NativeMultiTable) -> None:
    by_slot = NativeMultiTable(CONFIGS)
    batch = {"user": (_ids(1, 2, 1), torch.ones(3, 3)), "Ü": (_ids(1), torch.ones(1, 3))}
    ragged, flat = table.dict_to_flat(batch)
    assert repr(table.raw_assign(ragged, flat, ts=3)) == repr(by_slot.assign(batch, ts=3))
    assert repr(table.raw_assign_add(ragged, flat, ts=4)) == repr(by_slot.assign_add(batch, ts=4))
    table.raw_apply_gradients(ragged, flat, ts=5, step=1)
    by_slot.apply_gradients(batch, ts=5, step=1)
    table.raw_apply_gradients(ragged, flat, per_occurrence=True, counts=_ids(1, 2, 3, 4))
    by_slot.apply_gradients(batch, per_occurrence=True)
    assert all_rows(table.store) == all_rows(by_slot.store)
    assert [t.max_ts() for t in table.store.tables] == [0, 5, 5]
    found = table.flat_to_dict(ragged, table.raw_lookup(ragged))
    for slot, (ids, _) in batch.items():
        assert torch.equal(found[slot], by_slot.lookup({slot: ids})[slot])


def test_every_request_of_a_batch_reads_its_own_ids(table: NativeMultiTable) -> None:
    _filled(table)
    # Three requests of item, user, Ü.
    ids = Ragged.from_lists([[1], [2], [], [], [3], [1], [2, 3], [], []])
    flat = table.raw_lookup(ids)
    assert flat.tolist() == [1, *[102] * 3, *[103] * 3, *[201] * 3, 2, 3]
    second = table.flat_to_dict(ids, flat, request=1)
    assert {slot: rows.tolist() for slot, rows in second.items()} == {
        "item": [],
        "user": [[103] * 3],
        "Ü": [[201] * 3],
    }
    out = torch.empty(12)
    assert table.raw_lookup(ids, out=out).data_ptr() == out.data_ptr()
    assert torch.equal(out, flat)


def test_every_request_of_a_batch_is_an_update_of_its_own(table: NativeMultiTable) -> None:
    ids = Ragged.from_lists([[], [1, 2], [], [], [2, 2], [5]])
    grads = torch.arange(1.0, 16.0)
    table.raw_apply_gradients(ids, grads, ts=8, step=0)
    item, user, other = apart()
    user.apply_gradients(_ids(1, 2), grads[:6], ts=8)
    user.apply_gradients(_ids(2, 2), grads[6:12], ts=8)
    other.apply_gradients(_ids(5), grads[12:], ts=8)
    assert all_rows(table.store) == [everything(t) for t in (item, user, other)]


def test_zero_requests_are_no_work(table: NativeMultiTable) -> None:
    none = Ragged(_ids(), _ids(0))
    assert table.raw_lookup(none).shape == (0,)
    assert table.raw_apply_gradients(none, torch.empty(0), ts=4).inserted == 0
    assert table.raw_assign(none, torch.empty(0), ts=4).inserted == 0
    assert (table.size(), table.max_ts()) == (0, 0)


def test_one_table_and_several_requests() -> None:
    config = table_config(optimizers.Sgd(lr=1.0), init=initializers.Zeros(), dim=1)
    table = NativeMultiTable({"only": config})
    ids = Ragged.from_lists([[1, 2], [], [2]])
    table.raw_apply_gradients(ids, torch.tensor([1.0, 2.0, 4.0]))
    assert table.raw_lookup(ids).tolist() == [-1, -6, -6]


def test_raw_rates_follow_the_names_not_the_order_of_the_configs() -> None:
    config = table_config(optimizers.Sgd(lr=0.0), init=initializers.Zeros(), dim=1)
    table = NativeMultiTable({"z": config, "a": config})
    ids = Ragged.from_lists([[1], [1]])
    table.raw_apply_gradients(ids, torch.ones(2), rates=[1.0, 2.0])
    assert table.lookup({"a": _ids(1), "z": _ids(1)})["a"].item() == -1
    assert table.lookup({"z": _ids(1)})["z"].item() == -2
