"""Slots of equal config in one table: who shares, under which name, and how batches are split."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hedgerow.core.errors import DtypeError, InputError, NotSupportedError, UnknownNameError
from hedgerow.monolith.tables.merged import MergedMultiTypeTable
from hedgerow.tables import initializers, optimizers
from hedgerow.tables.admission import Count
from hedgerow.tables.checkpoint.load import LoadResult, load_tables
from hedgerow.tables.checkpoint.save import save_tables
from hedgerow.tables.eviction import Lru
from hedgerow.tables.host import HostTable

from ...support import everything, table_config

NARROW = table_config(init=initializers.Zeros(), dim=2, seed=None)
WIDE = table_config(optimizers.Adagrad(lr=0.5), dim=3, seed=None)
CONFIGS = {"c": NARROW, "a": WIDE, "b": NARROW, "d": WIDE}


def _ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.fixture
def table() -> MergedMultiTypeTable:
    return MergedMultiTypeTable(CONFIGS)


def test_slots_that_differ_in_their_name_alone_share_a_table(table: MergedMultiTypeTable) -> None:
    assert sorted(group.slots for group in table.groups) == [("a", "d"), ("b", "c")]
    assert table.names == ("a", "b", "c", "d")
    assert table.dims == (3, 2, 2, 3)
    assert table.table("b") is table.table("c")
    assert table.table("b") is not table.table("a")
    renamed = table_config(init=initializers.Zeros(), dim=2, seed=None, name="other")
    assert len(MergedMultiTypeTable({"x": renamed, "y": NARROW}).groups) == 1
    faster = table_config(optimizers.Sgd(lr=0.2), init=initializers.Zeros(), dim=2, seed=None)
    assert len(MergedMultiTypeTable({"x": faster, "y": NARROW}).groups) == 2


def test_a_slot_that_joins_or_leaves_renames_nothing_and_moves_no_row() -> None:
    ids = _ids(1, 2)
    rows = []
    for slots in (["b", "c"], ["b"], ["b", "c", "e", "a0"]):
        table = MergedMultiTypeTable(dict.fromkeys(slots, WIDE))
        table.apply_gradients({"b": (ids, torch.ones(2, 3))})
        rows.append((table.groups[0].name, table.table("b").config, everything(table.table("b"))))
    assert rows[0] == rows[1] == rows[2]
    assert rows[0][0] == rows[0][1].name


def _loaded(path: Path, table: MergedMultiTypeTable) -> LoadResult:
    return load_tables(path, [table.table(group.slots[0]) for group in table.groups])


def test_a_checkpoint_is_found_after_changes_that_it_tolerates(
    table: MergedMultiTypeTable, tmp_path: Path
) -> None:
    rows = torch.arange(6.0).view(2, 3)
    table.assign({"a": (_ids(1, 2), rows), "b": (_ids(3), torch.ones(1, 2))})
    save_tables([table.table("a"), table.table("b")], tmp_path / "saved")
    changed = table_config(
        optimizers.Adagrad(lr=0.1), 3, initializers.Zeros(), seed=5, evict=Lru(9), admit=Count(2)
    )
    later = MergedMultiTypeTable({"d": changed, "new": changed, "b": NARROW})
    loaded = _loaded(tmp_path / "saved", later)
    assert (sum(loaded.rows.values()), loaded.added, loaded.removed) == (3, (), ())
    assert later.lookup({"new": _ids(1, 2)})["new"].tolist() == rows.tolist()


def test_a_second_table_of_one_shape_renames_the_first_and_the_load_says_so(
    table: MergedMultiTypeTable, tmp_path: Path
) -> None:
    table.assign({"a": (_ids(1), torch.ones(1, 3)), "b": (_ids(3), torch.ones(1, 2))})
    save_tables([table.table("a"), table.table("b")], tmp_path / "saved")
    faster = table_config(optimizers.Adagrad(lr=2.0), dim=3, seed=None)
    later = MergedMultiTypeTable({**CONFIGS, "fast": faster})
    loaded = _loaded(tmp_path / "saved", later)
    assert set(loaded.added) == {later.table("a").config.name, later.table("fast").config.name}
    assert loaded.removed == (table.table("a").config.name,)
    assert (later.size(), loaded.rows) == (1, {table.table("b").config.name: 1})


def test_equal_ids_of_merged_slots_share_a_row(table: MergedMultiTypeTable) -> None:
    one = _ids(1)
    table.assign_add({"b": (one, torch.full((1, 2), 2.0)), "c": (one, torch.full((1, 2), 4.0))})
    found = table.lookup({"c": one, "b": one})
    assert list(found) == ["c", "b"]
    assert found["b"].tolist() == found["c"].tolist() == [[6, 6]]
    assert table.size() == 1


def test_batches_are_joined_in_the_order_of_the_slots_and_split_by_length(
    table: MergedMultiTypeTable,
) -> None:
    b, c = torch.arange(6.0).view(3, 2), torch.arange(10.0, 14.0).view(2, 2)
    table.assign({"c": (_ids(4, 5), c), "b": (_ids(1, 2, 3), b)}, ts=6)
    found = table.lookup({"c": _ids(5, 4), "a": _ids(), "b": _ids(3, 2, 1)})
    assert found["c"].tolist() == c.flip(0).tolist()
    assert found["b"].tolist() == b.flip(0).tolist()
    assert found["a"].shape == (0, 3)
    table.assign({"c": (_ids(7), c[:1]), "b": (_ids(7), b[:1])})
    assert table.lookup({"b": _ids(7)})["b"].tolist() == c[:1].tolist()  # b, then c
    assert table.max_ts() == 6


def test_one_step_for_an_id_of_two_slots(table: MergedMultiTypeTable) -> None:
    grads = torch.ones(1, 3)
    table.apply_gradients({"a": (_ids(1), grads), "d": (_ids(1), grads)}, ts=2)
    alone = HostTable(table.table("a").config)
    alone.apply_gradients(_ids(1, 1), torch.ones(2, 3), ts=2)
    assert everything(table.table("a")) == everything(alone)


def test_rates_of_merged_slots_must_agree(table: MergedMultiTypeTable) -> None:
    batch = {"b": (_ids(1), torch.ones(1, 2)), "c": (_ids(2), torch.ones(1, 2))}
    with pytest.raises(InputError, match="'b' and 'c' share a table"):
        table.apply_gradients(batch, rates={"b": [1.0], "c": [2.0]})
    assert table.size() == 0
    table.apply_gradients(batch, rates={"b": [1.0], "c": [1], "a": [5.0]})
    assert table.lookup({"c": _ids(2)})["c"].tolist() == [[-1, -1]]


def test_counts_are_joined_and_absent_ones_are_one(table: MergedMultiTypeTable) -> None:
    batch = {"b": (_ids(1, 2), torch.ones(2, 2)), "c": (_ids(3), torch.ones(1, 2))}
    merged = table._counts(batch, {"b": _ids(4, 5)})
    assert [own.tolist() for own in merged.values()] == [[4, 5, 1]]
    assert table.apply_gradients(batch, counts={"b": _ids(4, 5)}).inserted == 3


def test_reinitialize_says_why_not(table: MergedMultiTypeTable) -> None:
    with pytest.raises(NotSupportedError, match="other slots may share"):
        table.reinitialize("a", _ids(1))


BAD_WRITES = {
    "unknown slot": ({"x": (_ids(1), torch.ones(1, 2))}, UnknownNameError),
    "wrong width": ({"b": (_ids(1), torch.ones(1, 3))}, InputError),
    "wrong count": ({"b": (_ids(1), torch.ones(2, 2))}, InputError),
    "counts that only fit together": (
        {"b": (_ids(1), torch.ones(2, 2)), "c": (_ids(1, 2), torch.ones(1, 2))},
        InputError,
    ),
    "int32 ids": ({"b": (_ids(1).int(), torch.ones(1, 2))}, DtypeError),
    "float64 rows": ({"b": (_ids(1), torch.ones(1, 2).double())}, DtypeError),
    "not finite": ({"b": (_ids(1), torch.full((1, 2), float("nan")))}, InputError),
    "no pair": ({"b": _ids(1)}, DtypeError),
    "no dict": ([1], DtypeError),
}


@pytest.mark.parametrize("write", ["assign", "assign_add", "apply_gradients"])
@pytest.mark.parametrize(("batch", "error"), BAD_WRITES.values(), ids=BAD_WRITES)
def test_a_bad_write_changes_no_table(
    table: MergedMultiTypeTable, write: str, batch: object, error: type[Exception]
) -> None:
    good = {slot: (_ids(9), torch.ones(1, dim)) for slot, dim in zip("ad", (3, 3), strict=True)}
    mixed = {**good, **batch} if isinstance(batch, dict) else batch
    with pytest.raises(error):
        getattr(table, write)(mixed)
    assert table.size() == 0


def test_a_bad_read_is_refused(table: MergedMultiTypeTable) -> None:
    with pytest.raises(UnknownNameError, match="'x'"):
        table.lookup({"x": _ids(1)})
    with pytest.raises(DtypeError, match="ids of 'b'"):
        table.lookup({"b": _ids(1).float()})
    with pytest.raises(InputError, match="counts lists slot 'c'"):
        table.apply_gradients({"b": (_ids(1), torch.ones(1, 2))}, counts={"c": _ids(1)})
