"""Names of tables in checkpoints: Monolith's, ours beside them, and a load finds either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow.monolith import distributed_ps_factory as door
from hedgerow.monolith.tables.merged import MergedMultiTypeTable, legacy_names, merged_name
from hedgerow.monolith.test_utils import generate_test_hash_table_config
from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.load import load_tables
from hedgerow.tables.checkpoint.save import save_tables
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Uniform
from hedgerow.tables.optimizers import Sgd
from tests.support import everything

SLOTS = ("fc_slot_1", "fc_slot_2")
CONFIGS = {slot: TableConfig("any", (Segment(2, Uniform(1.0), Sgd(lr=1.0)),)) for slot in SLOTS}
IDS = torch.tensor([1, 2, 3])


def door_table() -> Any:
    return door.create_multi_type_hash_table(0, CONFIGS, [None])


def rows_of(table: Any) -> Any:
    return everything(table.table(SLOTS[0]))


def test_both_names_stand_in_the_manifest(tmp_path: Path) -> None:
    table, ours = door_table(), MergedMultiTypeTable(CONFIGS)
    manifest = save_tables(table.below.store.tables, tmp_path)
    ((name, entry),) = manifest.tables.items()
    assert name == f"MonolithHashTable_{merged_name(SLOTS)}"
    (older,) = legacy_names(SLOTS)
    assert entry.also == (ours.below.names[0], f"MonolithHashTable_{older}")


@pytest.mark.parametrize("saved_by_door", [True, False])
def test_a_load_finds_either(tmp_path: Path, saved_by_door: bool) -> None:
    one, other = door_table(), MergedMultiTypeTable(CONFIGS)
    before, after = (one, other) if saved_by_door else (other, one)
    before.apply_gradients({SLOTS[0]: (IDS, torch.ones(3, 2))})
    save_tables(before.below.store.tables, tmp_path, router=Router("roundrobin", 3))
    loaded = load_tables(tmp_path, after.below.store.tables)
    assert (loaded.added, loaded.removed) == ((), ())
    assert rows_of(after) == rows_of(before)


def test_first_values_do_not_depend_on_the_name() -> None:
    found = []
    for table in (door_table(), MergedMultiTypeTable(CONFIGS)):
        table.apply_gradients({SLOTS[1]: (IDS, torch.zeros(3, 2))})
        found.append(rows_of(table))
    assert found[0] == found[1]


def test_native_tables_keep_the_names_of_slots(tmp_path: Path) -> None:
    slots = {"1": generate_test_hash_table_config(), "2": generate_test_hash_table_config()}
    table: Any = door.create_native_multi_hash_table(0, slots, [None])
    assert list(save_tables(table.store.tables, tmp_path).tables) == ["1", "2"]
