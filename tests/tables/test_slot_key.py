"""Ids that were chosen to collide cost no more than others, and the key that sees to it shows
nowhere."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import ConfigError, StateError
from hedgerow.tables import slot_key
from hedgerow.tables.admission import (
    Count,
    FilterMeta,
    FilterState,
    SlidingFilter,
    Within,
    table_key,
)
from hedgerow.tables.checkpoint.manifest import MANIFEST, seal
from hedgerow.tables.host import HostTable

from ..crafted_ids import that_meet, that_share
from ..support import everything, make_table, table_config, twin_of

_FEW = 2000  # ids that share 13 bits: in a table whose hash they know, all of one shard's corner


def _filled(ids: torch.Tensor, key: int | None = None) -> HostTable:
    table = make_table(dim=1, slot_key=key)
    table.assign(ids, torch.ones(len(ids), 1))
    return table


def test_ids_that_share_bits_of_the_known_hash_are_found_as_fast_as_any() -> None:
    crafted = that_share(13, _FEW)
    assert _filled(crafted, 0).stats()["longest_search"] > 300  # what they do where it is known
    random = torch.randint(-(2**63), 2**63 - 1, (_FEW,))
    usual = max(_filled(random).stats()["longest_search"] for _ in range(8))
    for _ in range(8):
        assert _filled(crafted).stats()["longest_search"] < 3 * usual < 100


@pytest.mark.parametrize(
    "ids",
    [
        torch.arange(_FEW),
        torch.arange(_FEW) << 32,
        torch.arange(_FEW) << 52,
        torch.arange(_FEW) * 0x5851F42D4C957F2D,
        torch.cat([torch.arange(_FEW // 2), torch.arange(_FEW // 2) ^ -(2**63)]),
        that_share(11, _FEW, low=True),
    ],
    ids=["counted", "equal low 32", "equal low 52", "multiples", "pairs", "known low bits"],
)
def test_no_structure_of_ids_survives_any_of_many_keys(ids: torch.Tensor) -> None:
    for _ in range(10):
        assert _filled(ids).stats()["longest_search"] < 60


def test_every_table_draws_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # as users have it
    keys = {make_table().slot_key for _ in range(20)} | {slot_key.drawn_key() for _ in range(20)}
    assert len(keys) == 40
    assert all(0 < key < 2**64 for key in keys)
    assert make_table(slot_key=2**64 - 1).slot_key == 2**64 - 1


@pytest.mark.parametrize("key", [-1, 2**64, 1.0, True, "5"])
def test_what_is_no_key_is_refused(key: object) -> None:
    with pytest.raises(ConfigError, match=r"slot_key is .*; it must be an int in 0\.\.2\*\*64-1"):
        table_config(slot_key=key)
    with pytest.raises(ConfigError, match=r"SlidingFilter\.slot_key"):
        SlidingFilter(slot_key=key)  # pyright: ignore[reportArgumentType]


def test_rows_do_not_depend_on_the_key() -> None:
    ids = torch.randint(-3000, 3000, (8, 4000))
    tables = [make_table(hr.Adam(lr=0.1), slot_key=key) for key in (0, 1, None)]
    for step, batch in enumerate(ids):
        done = [
            table.apply_gradients(batch, torch.randn(4000, 4, generator=_seeded(step)))
            for table in tables
        ]
        assert str(done[0]) == str(done[1]) == str(done[2])
    gone = [int(table.erase(ids[0]).sum()) for table in tables]
    assert gone[0] == gone[1] == gone[2] > 0
    assert everything(tables[0]) == everything(tables[1]) == everything(tables[2])


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_filter_hears_of_ids_in_the_order_of_the_batch_whatever_the_key() -> None:
    """Its window moves on in the middle of a batch: another order would forget other ids."""
    config = table_config(admit=Within(300, 2))
    twin = twin_of(config)
    tables = [HostTable(table_config(admit=Within(300, 2), slot_key=key)) for key in range(5)]
    for step in range(12):
        batch = torch.randint(0, 900, (500,), generator=_seeded(step))
        wanted = twin.assign(batch, torch.ones(500, 4))
        for table in tables:
            assert str(table.assign(batch, torch.ones(500, 4))) == str(wanted)
    ids = torch.arange(900)
    for table in tables:
        assert torch.equal(table.contains(ids), twin.contains(ids))


# ---- the key goes with the rows


def test_rows_bring_their_key_along_and_lookups_beside_see_all_of_them() -> None:
    ids = torch.arange(50)
    table, other = _filled(ids, 1), _filled(ids, 2)
    other.config = table.config
    stop, wrong = threading.Event(), []

    def look() -> None:
        few = ids[torch.tensor([3, 9, 27])]
        while not stop.is_set():
            found = table.contains(few)
            if not bool(found.all()):
                wrong.append(found)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(3000):
        table.exchange_rows(other)
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    table.exchange_rows(other)
    assert (table.slot_key, other.slot_key) == (2, 1)
    assert bool(table.contains(ids).all())


def test_a_key_touched_before_and_after_an_exchange_is_taken_once() -> None:
    ids = torch.arange(300)
    table, other = _filled(ids, 1), _filled(ids, 2)
    other.config = table.config
    consumer = table.touched("sync")
    table.apply_gradients(ids, torch.ones(300, 1))
    table.exchange_rows(other)
    table.apply_gradients(ids[:200], torch.ones(200, 1))
    assert sorted(consumer.take().ids.tolist()) == ids.tolist()
    assert consumer.size() == 0


def test_a_key_changes_only_under_no_rows() -> None:
    table = make_table()
    table.use_slot_key(5)
    table.assign(torch.arange(100), torch.ones(100, 4))
    assert table.slot_key == 5
    assert bool(table.contains(torch.arange(100)).all())
    table.use_slot_key(5)
    with pytest.raises(StateError, match="has rows, and its slot key cannot change"):
        table.use_slot_key(6)


def test_a_load_restores_the_key_unless_the_config_names_one(tmp_path: Path) -> None:
    ids = torch.arange(500)
    saved = _filled(ids)
    manifest = hr.save([saved], tmp_path / "base")
    assert manifest.tables["test"].slot_key == saved.slot_key
    plain, own = make_table(dim=1), make_table(dim=1, slot_key=9)
    for table in (plain, own):
        hr.load([table], tmp_path / "base")
        assert everything(table) == everything(saved)
    assert (plain.slot_key, own.slot_key) == (saved.slot_key, 9)


def test_a_checkpoint_of_a_release_without_keys_loads(tmp_path: Path) -> None:
    saved = _filled(torch.arange(500))
    hr.save([saved], tmp_path)
    values = json.loads((tmp_path / MANIFEST).read_bytes())
    del values["checksum"], values["tables"]["test"]["slot_key"]
    (tmp_path / MANIFEST).write_bytes(seal(json.dumps(values, indent=1)))
    table = make_table(dim=1)
    before = table.slot_key
    hr.load([table], tmp_path)
    assert table.slot_key == before
    assert everything(table) == everything(saved)


# ---- filters


def _known_homes(seed: int, table: str, homes: int) -> object:
    """Where release 0.1 counted an id, in an array of so many homes."""

    def fold(a: int, b: int) -> int:
        return (a * b >> 64) ^ (a * b & (2**64 - 1))

    start = seed ^ 0x8BB84B93962EACC9
    salt = fold(fold(start, 0x2D358DCCAA6C78A5) ^ table_key(table), 0x9E3779B97F4A7C15)

    def places(id_: int) -> tuple[int, ...]:
        once = fold(id_ ^ salt, 0xD1342543DE82EF95) ^ 0x4B33A62ED433D4A3
        hashed = fold(once, 0xAF251AF3B0F025B5)
        second = (hashed >> 8) * 0x9E3779B97F4A7C15 % 2**64
        return tuple(sorted((h >> 32) * homes >> 32 for h in (hashed, second)))

    return places


def test_a_filter_has_cells_for_ids_that_were_crafted_against_it() -> None:
    ids = that_meet(45, _known_homes(3, "user", 8))  # 2 homes of 16 cells, in arrays of 50 ids
    known = SlidingFilter(capacity_ids=300, seed=3, slot_key=0)
    assert known.add(ids, table="user").tolist() != [0] * 45
    assert known.failures > 0
    for _ in range(20):
        keyed = SlidingFilter(capacity_ids=300, seed=3)
        assert keyed.add(ids, table="user").tolist() == [0] * 45
        assert keyed.failures == 0


def test_a_table_gives_its_filter_a_key() -> None:
    tables = [make_table(admit=Count(2)), make_table(admit=Count(2), slot_key=11)]
    keys = [table.filter.dump().meta.slot_key for table in tables if table.filter is not None]
    assert keys == [tables[0].slot_key, 11]


def test_counts_come_back_with_their_key_and_those_of_release_0_1_too() -> None:
    ids = torch.tensor([1, -1, 2**40])
    seen = SlidingFilter(capacity_ids=300, seed=3)
    seen.add(ids, table="user")
    other = SlidingFilter(capacity_ids=300, seed=3)
    other.restore(seen.dump())
    assert other.counts(ids, table="user").tolist() == [1, 1, 1]

    old = SlidingFilter(capacity_ids=300, seed=3, slot_key=0)
    old.add(ids, table="user")
    state = old.dump()
    plain = state.meta.to_dict()
    del plain["slot_key"]
    other.restore(FilterState(FilterMeta.from_dict(plain), state.arrays))
    assert other.counts(ids, table="user").tolist() == [1, 1, 1]
