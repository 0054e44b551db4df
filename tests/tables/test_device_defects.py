"""What went wrong in tables on a device, ours or others' (specification 2.8), and may not again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from hedgerow.core.errors import DtypeError, InputError, TableFullError, UnknownNameError
from hedgerow.kernels import evict, find
from hedgerow.kernels.layout import BUSY, EVICTED, LANES, Arrays
from hedgerow.tables import initializers, optimizers
from hedgerow.tables.admission import Within
from hedgerow.tables.config import TableConfig
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.eviction import EvictionOrderState, Lfu
from hedgerow.tables.multi.device_group import DeviceGroup
from hedgerow.tables.multi.device_tables import DeviceTables
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys

from ..support import everything, host_table, table_config


def _config(**settings: Any) -> TableConfig:
    return table_config(optimizers.Adagrad(lr=0.1), dim=3, **{"not_finite": "drop", **settings})


def _table(device: torch.device, rows: int = 16, full: Any = "refuse", **more: Any) -> DeviceTable:
    return DeviceTable(_config(**more), capacity_rows=rows, device=device, full=full)


def _ids(device: torch.device, *ids: int) -> torch.Tensor:
    return torch.tensor(ids, device=device)


@pytest.mark.parametrize("rule", [None, Lfu(99)], ids=repr)
def test_rows_that_were_restored_leave_a_full_table_as_others_do(
    device: torch.device, rule: Any
) -> None:
    """The oldest first, by their own times; under Lfu they had no score and stayed for ever."""
    host = host_table(_config(evict=rule))
    for ts in range(16):
        host.assign(torch.tensor([ts]), torch.ones(1, 3), ts=100 - ts)
    table = _table(device, full="evict", evict=rule)
    for part in host.scan():
        table.restore(part)
    done = table.apply_gradients(_ids(device, 50, 51), torch.ones(2, 3, device=device), ts=200)
    assert repr(done) == "Applied(inserted=2, refused=0, dropped=0)"
    gone = set(range(16)) - everything(table).keys()
    assert len(gone) == 2
    assert rule or gone == {14, 15}


def test_rows_that_were_made_as_new_leave_a_full_table(device: torch.device) -> None:
    table = _table(device, full="evict", evict=Lfu(99))
    table.reinitialize(torch.arange(16, device=device))
    done = table.apply_gradients(_ids(device, 50), torch.ones(1, 3, device=device), ts=2)
    assert (done.inserted, done.refused, table.size()) == (1, 0, 16)


def test_nobody_leaves_for_a_gradient_that_is_dropped(device: torch.device) -> None:
    """One occurrence is finite, the sum is not."""
    table = _table(device, full="evict")
    table.assign(torch.arange(16, device=device), torch.ones(16, 3, device=device), ts=1)
    grads = torch.tensor([[1.0], [torch.nan], [torch.inf], [3.0]], device=device).expand(4, 3)
    done = table.apply_gradients(_ids(device, 50, 50, 51, 51), grads.contiguous(), ts=2)
    assert repr(done) == "Applied(inserted=0, refused=0, dropped=4)"
    assert everything(table).keys() == set(range(16))


@pytest.mark.long
def test_a_table_that_was_fuller_than_it_should_be_grows_without_loss(device: torch.device) -> None:
    table = _table(device, 320)
    ids = torch.arange(400, device=device)
    table.assign(ids, torch.ones(400, 3, device=device), ts=1)
    rows = everything(table)
    assert len(rows) > 310
    table.reserve(260)  # one bucket more: too few for rows that stand so close
    assert everything(table) == rows


def test_uses_are_told_apart_after_many_evictions(device: torch.device) -> None:
    table = _table(device, 64, evict=Lfu(4, half_life=10**6))
    assert table.order is not None
    table.order.restore(EvictionOrderState(0, 2.0**17 + 1))  # beyond what an exponent has room for
    for last in (4, 4, 6):
        ids = torch.arange(last, device=device)
        table.assign(ids, torch.ones(last, 3, device=device), ts=1)
    gone = table.evict(capture=True).ids
    assert gone is not None
    assert sorted(gone.tolist()) == [4, 5]
    table.assign(_ids(device, 7), torch.ones(1, 3, device=device), ts=1)
    assert table.uses(_ids(device, 0, 7)).tolist() == [3, 1]


def test_an_id_that_comes_back_does_not_inherit_uses(device: torch.device) -> None:
    table = _table(device, evict=Lfu(9, half_life="1d"))
    one, row = _ids(device, 7), torch.ones(1, 3, device=device)
    for _ in range(3):
        table.assign(one, row, ts=1)
    table.erase(one)
    table.assign(one, row, ts=1)
    assert table.uses(one).tolist() == [1]


@pytest.fixture
def low_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("low_precision")
def test_rows_are_float32_whatever_the_default_type_is(device: torch.device) -> None:
    """A host table wrote float32 into room for half as much."""
    tables = (_table(device), host_table(_config()))
    for table in tables:
        ids = torch.arange(4, device=table.device)
        table.apply_gradients(ids, torch.ones(4, 3, dtype=torch.float32, device=table.device), ts=1)
        assert table.lookup(ids + 2, missing="initializer").rows.dtype == torch.float32
        assert table.entries(ids).rows.dtype == torch.float32
    assert everything(tables[0]) == everything(tables[1])


def test_ids_without_room_read_as_absent_ones(device: torch.device) -> None:
    table = _table(device)
    ids = torch.arange(40, device=device)
    assert not bool(table.contains(ids).any())  # nor is 0 there before it is born
    assert table.apply_gradients(ids, torch.ones(40, 3, device=device), ts=1).refused == 24
    absent = ids[~table.contains(ids)]
    out = torch.full((len(absent), 3), torch.nan, device=device)
    assert not bool(table.lookup(absent, out=out).rows.any())
    new = table.lookup(absent, missing="initializer").rows_of()
    host = host_table(_config())
    assert torch.equal(new.cpu(), host.lookup(absent.cpu(), missing="initializer").rows_of())


def test_reading_changes_nothing(device: torch.device) -> None:
    table = _table(device, evict=Lfu(9))
    ids = torch.arange(6, device=device)
    table.assign(ids, torch.ones(6, 3, device=device), ts=3)
    before = table.arrays.index.clone(), table.arrays.values.clone()
    table.lookup(ids, missing="initializer")
    table.entries(ids)
    list(table.scan(2))
    with table.snapshot() as rows:
        assert sum(len(part) for part in rows.scan()) == 6
    assert torch.equal(table.arrays.index, before[0])
    assert torch.equal(table.arrays.values, before[1])


def test_held_rows_of_every_table_of_a_group_stay(device: torch.device) -> None:
    """Pins are numbered through all tables, slots within each: also those of the second."""
    tables = Arrays.make_several([1, 1], 1, device)
    tables = replace(tables, pins=torch.zeros(len(tables.values), dtype=torch.int32, device=device))
    ids = torch.arange(LANES, device=device).repeat(2)
    cuts = torch.tensor([0, LANES, 2 * LANES], device=device)
    put = evict.insert_and_evict(tables, ids, torch.zeros_like(ids), call=1, splits=cuts)
    assert torch.equal(put.slots, find.find(tables, ids, splits=cuts))  # each within its own table
    assert sorted(put.slots[LANES:].tolist()) == list(range(LANES))
    held = torch.where(torch.arange(2 * LANES, device=device) > 0, put.slots, -1)
    with pytest.raises(InputError, match="pass their splits"):
        evict.pin(tables, held)
    evict.pin(tables, held, splits=cuts)  # all of the second table, all but id 0 of the first
    new = _ids(device, 77, 77)
    cuts = torch.tensor([0, 1, 2], device=device)
    placed = evict.insert_and_evict(tables, new, torch.ones_like(new), call=2, splits=cuts)
    assert placed.codes.tolist() == [EVICTED, BUSY]
    assert placed.victims.tolist()[0] == 0


def test_every_table_of_a_group_has_its_own_first_values(device: torch.device) -> None:
    configs = {
        name: replace(_config(init=initializers.Uniform(width)), name=name)
        for name, width in (("a", 0.1), ("b", 9.0))
    }
    ours = DeviceTables(configs, device=device, capacity_rows={"a": 9, "b": 9})
    assert ours._group is not None
    ids = torch.arange(4).repeat(2)
    keys, asked = TableKeys(ids.to(device), (0, 4, 8)), TableKeys(ids, (0, 4, 8))
    grads = torch.zeros(24)
    ours.apply_gradients(keys, grads.to(device), ts=1)
    host = HostTables(configs)
    host.apply_gradients(asked, grads, ts=1)
    assert torch.equal(ours.lookup(keys).rows.cpu(), host.lookup(asked).rows)
    assert float(ours.lookup(keys).rows[12:].abs().max()) > 1
    assert not DeviceGroup.fits([2**26, 2**26])  # of 16 slots each: more than 32 bits can number


def test_a_store_of_tables_checks_the_room_it_is_given(device: torch.device) -> None:
    configs = {name: replace(_config(), name=name) for name in "ab"}
    keys = TableKeys(torch.arange(4, device=device), (0, 2, 4), _ids(device, 1, 2))
    for store in (
        DeviceTables(configs, device=device, capacity_rows={"a": 9, "b": 9}),
        DeviceTables(configs, device=device, on_host=["a"]),
    ):
        for wrong in (torch.empty(11), torch.empty(13), torch.empty(12, dtype=torch.float16)):
            with pytest.raises((InputError, DtypeError), match="out"):
                store.lookup(keys, out=wrong.to(device))
        store.assign(keys, torch.ones(12, device=device))
        assert store.contains(keys).tolist() == [True, False, True, True]


@pytest.mark.parametrize("where", ["capacity_rows", "on_host"])
def test_names_of_tables_that_are_not_there_are_refused(device: torch.device, where: str) -> None:
    configs = {name: replace(_config(), name=name) for name in ("user", "item")}
    wrong: Any = {"itme": 9} if where == "capacity_rows" else ["itme"]
    told = f"unknown table in {where}: 'itme'; known: item, user. Did you mean 'item'?"
    with pytest.raises(UnknownNameError, match=re.escape(told)):
        DeviceTables(configs, device=device, **{where: wrong})
    with pytest.raises(InputError, match=r"on_host is 'user'; pass a list of names"):
        DeviceTables(configs, device=device, on_host="user")


def test_ids_without_room_are_told_of_where_that_is_asked_for(device: torch.device) -> None:
    """The others are written; an id that an admission rule keeps out is no such id."""
    ids = torch.arange(40, device=device)
    rows = torch.ones(40, 3, device=device)
    table = _table(device, full="raise")
    assert table.assign(ids[:4], rows[:4]).inserted == 4
    for _ in range(2):
        with pytest.raises(TableFullError, match=r"^24 ids of a call found no room in .*: 16"):
            table.apply_gradients(ids, rows)
    assert (table.size(), table.stats()["refused"]) == (16, 48)
    with pytest.raises(TableFullError, match="1 ids"):
        table.assign_add(ids[~table.contains(ids)][:1], rows[:1])
    filtered = _table(device, full="raise", admit=Within(1000, 2))
    assert filtered.apply_gradients(ids[:9], rows[:9]).refused == 9
    assert filtered.apply_gradients(ids[:9], rows[:9], per_occurrence=True).inserted == 9
    store = DeviceTables(
        {name: replace(_config(), name=name) for name in "ab"},
        device=device,
        capacity_rows={"a": 9, "b": 90},
        full="raise",
    )
    keys = TableKeys(ids, (0, 36, 40))
    with pytest.raises(TableFullError, match="in table 'a'"):
        store.assign(keys, rows.view(-1))


def test_counts_below_one_count_as_one(device: torch.device) -> None:
    """A negative one went into the bits of a cell that say whose it is."""
    table = _table(device, 64, admit=Within(1000, 3))
    ids, grads = torch.tensor([1, 2, 3], device=device), torch.ones(3, 3, device=device)
    table.apply_gradients(ids, grads, counts=torch.tensor([-300, 0, 2], device=device))
    assert table.filter is not None
    assert table.filter.counts(ids, table="test").tolist() == [1, 1, 2]
    table.filter.add(ids, table="test", counts=torch.tensor([-1, 0, -(2**40)], device=device))
    assert table.filter.counts(ids, table="test").tolist() == [2, 2, 3]
    table.filter.restore(table.filter.dump())  # which looks for cells without a count
    with pytest.raises(InputError, match="counts has -300; an id occurs at least once"):
        host_table(_config(admit=Within(1000, 3))).apply_gradients(
            ids.cpu(), grads.cpu(), counts=torch.tensor([-300, 0, 2])
        )
