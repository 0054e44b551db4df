"""The states of a row in a cache, and what leads from one to another."""

from __future__ import annotations

import pytest
import torch

from hedgerow.tables.host import HostTable
from hedgerow.tables.optimizers import Sgd
from hedgerow.tiers.caching import CachingTable
from hedgerow.tiers.residency_map import RowState

from ..support import table_config

CONFIG = table_config(Sgd(lr=0.1), dim=2)
ONE, OTHERS = torch.tensor([1]), torch.tensor([2, 3])
ABSENT, CLEAN, DIRTY, LEAVING = (
    RowState.ABSENT,
    RowState.CLEAN,
    RowState.DIRTY,
    RowState.LEAVING,
)


@pytest.fixture(name="table")
def cache_of_two_rows(monkeypatch: pytest.MonkeyPatch) -> CachingTable:
    """Rows 1, 2 and 3 are in the slow store; nothing is written back unless it must."""
    table = CachingTable(HostTable(CONFIG), HostTable(CONFIG), cache_rows=2, queue_rows=4)
    monkeypatch.setattr(table.moves.write_back, "start", lambda: None)
    table.slow.assign(torch.tensor([1, 2, 3]), torch.ones(3, 2))
    return table


def _update(table: CachingTable, ids: torch.Tensor) -> None:
    table.apply_gradients(ids, torch.ones(len(ids), 2))


def _fetch(table: CachingTable, ids: torch.Tensor) -> None:
    table.lookup(ids, missing="training")


def test_a_row_that_is_only_read_is_clean_until_it_leaves(table: CachingTable) -> None:
    assert table.row_states(ONE) == [ABSENT]
    _fetch(table, ONE)
    assert table.row_states(ONE) == [CLEAN]
    _fetch(table, OTHERS)
    assert table.row_states(torch.tensor([1, 2, 3])) == [ABSENT, CLEAN, CLEAN]


def test_a_changed_row_is_written_back(table: CachingTable) -> None:
    _update(table, ONE)
    assert table.row_states(ONE) == [DIRTY]
    table.flush()
    assert table.row_states(ONE) == [CLEAN]
    _update(table, ONE)
    _fetch(table, OTHERS)
    assert table.row_states(ONE) == [LEAVING]
    table.flush()
    assert table.row_states(ONE) == [ABSENT]
    assert torch.allclose(table.slow.lookup(ONE).rows, torch.full((2,), 0.8))


def test_a_row_in_flight_comes_back_dirty(table: CachingTable) -> None:
    _update(table, ONE)
    _fetch(table, OTHERS)
    assert table.row_states(ONE) == [LEAVING]
    _fetch(table, ONE)
    assert table.row_states(ONE) == [DIRTY]
    assert torch.allclose(table.lookup(ONE).rows, torch.full((2,), 0.9))


def test_an_erased_row_has_no_copy(table: CachingTable) -> None:
    _update(table, ONE)
    table.erase(ONE)
    assert table.row_states(ONE) == [ABSENT]
    assert not bool(table.contains(ONE))
