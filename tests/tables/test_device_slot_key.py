"""Tables and filters on a device: ids that were chosen to share two buckets find room as others do.

Runs in Triton's interpreter, or on a GPU where there is one.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import StateError
from hedgerow.kernels import placement
from hedgerow.kernels.layout import LANES, MIX_1, Arrays, mix_of, mixed
from hedgerow.tables.admission import FilterMeta, FilterState, Within, table_key
from hedgerow.tables.config import TableConfig
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.device_policies import DeviceFilter
from hedgerow.tables.multi.device_tables import DeviceTables
from hedgerow.tables.optimizers import Sgd
from hedgerow.tables.store import TableKeys
from tests.twins import kernels_table

from ..crafted_ids import that_meet
from ..support import everything, table_config

_BUCKETS = 16
_SPREAD = 0x9E3779B97F4A7C15


def _config(key: int | None = None, name: str = "user") -> TableConfig:
    return table_config(Sgd(lr=0.1), dim=2, name=name, not_finite="drop", slot_key=key)


def _table(device: torch.device, key: int | None = None) -> DeviceTable:
    return DeviceTable(_config(key), capacity_rows=_BUCKETS * LANES, device=device)


def _known_buckets(id_: int) -> tuple[int, ...]:
    hashed = mixed(id_)
    first, second = (half * _BUCKETS >> 32 for half in (hashed >> 32, hashed & (2**32 - 1)))
    return first, (first + 1) % _BUCKETS if second == first else second


@pytest.fixture(scope="module")
def crafted() -> torch.Tensor:
    """Ids that share their two buckets where the hash is known."""
    return that_meet(60, _known_buckets)


def _rows(ids: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(ids), 2, device=ids.device)


def test_ids_that_share_two_known_buckets_all_find_room(
    device: torch.device, crafted: torch.Tensor
) -> None:
    ids = crafted.to(device)
    known = _table(device, 0)
    assert int(known.assign(ids, _rows(ids)).refused) == 60 - 2 * LANES
    for _ in range(8):
        table = _table(device)
        assert int(table.assign(ids, _rows(ids)).refused) == 0
        assert bool(table.contains(ids).all())


def test_tables_of_one_group_place_ids_by_one_key(
    device: torch.device, crafted: torch.Tensor
) -> None:
    configs = {name: _config(None, name) for name in "abc"}
    rooms = dict.fromkeys(configs, 150)
    tables = DeviceTables(configs, device=device, capacity_rows=rooms)
    assert len({table.slot_key for table in tables.tables}) == 1
    ids = crafted.to(device)
    keys = TableKeys(torch.cat([ids, ids, ids]), (0, 60, 120, 180))
    for _ in range(2):
        found = tables.lookup(keys)
        tables.apply_gradients(found, torch.ones_like(found.rows))
    assert [table.size() for table in tables.tables] == [60, 60, 60]
    for table in tables.tables:
        assert bool(table.contains(ids).all())


def test_a_group_whose_tables_have_other_keys_asks_each_for_itself(device: torch.device) -> None:
    configs = {name: _config(None, name) for name in "ab"}
    tables = DeviceTables(configs, device=device, capacity_rows=dict.fromkeys(configs, 150))
    tables.table(0).use_slot_key(5)
    ids = torch.arange(90, device=device)
    keys = TableKeys(torch.cat([ids, ids]), (0, 90, 180))
    for _ in range(2):
        found = tables.lookup(keys)
        tables.apply_gradients(found, torch.ones_like(found.rows))
    assert [table.size() for table in tables.tables] == [90, 90]
    assert bool(tables.table(0).contains(ids).all())


def test_kernels_place_as_their_twins_by_any_key(device: torch.device) -> None:
    ids = torch.randint(-(2**63), 2**63 - 1, (200,))
    for key in (0, 1, 2**63, 2**64 - 1, 0x1234567890ABCDEF):
        ours = placement.place(ids.to(device), 1000, key)
        for got, wanted in zip(ours, kernels_table.place(ids, 1000, key), strict=True):
            assert torch.equal(got.cpu(), wanted)
        table = Arrays.make(3, 1, device, slot_key=key)
        assert table.mix() == mix_of(key)
        table.clear()
        assert table.mix() == mix_of(key)
        assert not bool(table.taken().any())


def test_no_structure_of_ids_survives_any_of_many_keys() -> None:
    few = torch.arange(1024)
    pairs = torch.cat([few, few ^ -(2**63)])
    for ids in (few, few << 20, few << 32, few << 52, few * MIX_1 % 2**62, pairs):
        for key in range(1, 12):
            for bucket in kernels_table.place(ids, len(ids) // 16, key * _SPREAD % 2**64):
                assert int(bucket.bincount().max()) < 45  # 16 expected


def test_a_table_that_grows_keeps_its_key(device: torch.device) -> None:
    table = _table(device, 77)
    ids = torch.arange(300, device=device)
    table.assign(ids[:100], _rows(ids[:100]))
    table.reserve(2000)
    table.assign(ids, _rows(ids))
    assert table.slot_key == 77
    assert bool(table.contains(ids).all())


def test_where_ids_stand_follows_from_the_key(device: torch.device) -> None:
    ids = (torch.arange(40) * 7919).to(device)

    def slots(key: int) -> list[int]:
        table = _table(device, key)
        table.assign(ids, _rows(ids))
        found = table.lookup(ids).slots
        assert found is not None
        return found.tolist()

    first = slots(5)
    if device.type == "cpu":  # programs of a device race for places
        assert slots(5) == first
    assert slots(6) != first


def test_a_key_changes_only_under_no_rows(device: torch.device) -> None:
    table, ids = _table(device), torch.arange(40, device=device)
    table.use_slot_key(5)
    table.assign(ids, _rows(ids))
    assert table.slot_key == 5
    assert bool(table.contains(ids).all())
    with pytest.raises(StateError, match="has rows, and its slot key cannot change"):
        table.use_slot_key(6)
    table.erase(ids)
    table.use_slot_key(6)
    table.assign(ids, _rows(ids))
    assert bool(table.contains(ids).all())


def test_a_load_restores_the_key_of_a_table(device: torch.device, tmp_path: Path) -> None:
    saved, other, ids = _table(device), _table(device), torch.arange(80, device=device)
    saved.assign(ids, _rows(ids))
    hr.save([saved], tmp_path)
    assert saved.slot_key != other.slot_key
    hr.load([other], tmp_path)
    assert other.slot_key == saved.slot_key
    assert everything(other) == everything(saved)
    assert bool(other.contains(ids).all())


# ---- filters


def _known_homes(id_: int) -> tuple[int, ...]:
    salt = (table_key("user") + 3 * _SPREAD) % 2**64
    hashed = mixed(id_ ^ salt)
    first, second = (half * 24 >> 32 for half in (hashed >> 32, hashed & (2**32 - 1)))
    return first, (first + 1) % 24 if second == first else second


def test_a_filter_has_cells_for_ids_that_were_crafted_against_it(device: torch.device) -> None:
    ids = that_meet(40, _known_homes).to(device)
    known = DeviceFilter(capacity_ids=300, seed=3, device=device, slot_key=0)
    assert int(known.add(ids, table="user").sum()) == 2 * LANES
    for _ in range(8):
        keyed = DeviceFilter(capacity_ids=300, seed=3, device=device)
        assert bool(keyed.add(ids, table="user").all())
        assert keyed.counts(ids, table="user").tolist() == [1] * 40


def test_counts_come_back_with_their_key_and_those_of_release_0_1_too(
    device: torch.device,
) -> None:
    ids = torch.tensor([1, -1, 2**40], device=device)
    other = DeviceFilter(capacity_ids=300, seed=3, device=device)
    seen = DeviceFilter(capacity_ids=300, seed=3, device=device)
    seen.add(ids, table="user")
    other.restore(seen.dump())
    assert other.counts(ids, table="user").tolist() == [1, 1, 1]
    assert other.dump().meta == seen.dump().meta

    old = DeviceFilter(capacity_ids=300, seed=3, device=device, slot_key=0)
    old.add(ids, table="user")
    state = old.dump()
    plain = state.meta.to_dict()
    del plain["slot_key"]
    other.restore(FilterState(FilterMeta.from_dict(plain), state.arrays))
    assert other.counts(ids, table="user").tolist() == [1, 1, 1]


_CASES = [(seed, homes) for seed in range(32) for homes in (1, 2, 4)]


@pytest.mark.parametrize(("seed", "homes"), _CASES)
def test_a_filter_has_cells_for_ids_that_were_crafted_against_another_key(
    device: torch.device, seed: int, homes: int
) -> None:
    """The attacker knows the hash and the key of another filter, but not the key of this one."""
    made = random.Random(seed)
    name, key = made.choice(["user", "item", "x" * 200]), made.randrange(1, 2**63)
    salt, words = (table_key(name) + seed * _SPREAD) % 2**64, mix_of(key)
    start, ids = made.randrange(2**62), list[int]()
    while len(ids) < 40 * homes:  # both homes among a few
        start += 1
        hashed = mixed(start ^ salt, *words)
        first, second = (half * 24 >> 32 for half in (hashed >> 32, hashed & (2**32 - 1)))
        if max(first, second) <= homes:
            ids.append(start)
    crafted = torch.tensor(ids, device=device)
    known = DeviceFilter(capacity_ids=300, seed=seed, device=device, slot_key=key)
    assert known.add(crafted, table=name).sum() <= LANES * (homes + 2)
    keyed = DeviceFilter(capacity_ids=300, seed=seed, device=device)
    assert bool(keyed.add(crafted, table=name).all())
    assert keyed.counts(crafted, table=name).tolist() == [1] * len(ids)


def test_a_cleared_table_forgets_what_it_counted_but_not_in_a_filter_that_it_was_given(
    device: torch.device,
) -> None:
    config = table_config(Sgd(lr=0.1), dim=2, not_finite="drop", admit=Within(1000, 2))
    ids = torch.arange(5, device=device)
    given = DeviceFilter(capacity_ids=1000, device=device)
    for filter, rows in ((None, 0), (given, 5)):
        table = DeviceTable(config, capacity_rows=_BUCKETS * LANES, device=device, filter=filter)
        table.assign(ids, _rows(ids))
        table.clear()
        table.assign(ids, _rows(ids))
        assert table.size() == rows
