"""What tables of two tiers refuse, and that nothing has changed then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hedgerow.core.errors import CacheTooSmallError, ConfigError, NotFiniteError
from hedgerow.tables.admission import Count
from hedgerow.tables.compressors import Fp32
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.store import TableKeys
from hedgerow.tiers.caching import CachingTable
from hedgerow.tiers.hybrid import HybridTable
from hedgerow.tiers.tier_tables import TierTables

from ..support import everything, table_config

CONFIG = table_config(dim=2)
SERVING = TableConfig("s", (Segment(2, compressor=Fp32()),), serving=True)


def _cache(rows: int, **settings: Any) -> CachingTable:
    return CachingTable(HostTable(CONFIG), HostTable(CONFIG), cache_rows=rows, **settings)


def _hybrid(fast: TableConfig, slow: TableConfig) -> HybridTable:
    return HybridTable(HostTable(fast), HostTable(slow), fast_rows=4)


def test_a_step_larger_than_the_cache_is_refused_unless_asked_for() -> None:
    ids, grads = torch.arange(5), torch.ones(5, 2)
    table = _cache(4)
    with pytest.raises(CacheTooSmallError, match=r"5 distinct keys.*4 rows.*allow_small"):
        table.apply_gradients(ids, grads)
    with pytest.raises(CacheTooSmallError, match="5 distinct keys"):
        table.lookup(ids, missing="training")
    assert table.size() == 0
    assert table.lookup(ids).rows.tolist() == [0.0] * 10  # a read that no update follows
    asked, alone = _cache(4, allow_small=True), HostTable(CONFIG)
    for one in (asked, alone):
        one.apply_gradients(ids, grads)
        one.apply_gradients(ids, grads)
    assert everything(asked) == everything(alone)


def test_outstanding_batches_must_fit_the_cache() -> None:
    table, ids = _cache(6), torch.arange(10)
    table.apply_gradients(ids[:5], torch.ones(5, 2))
    table.apply_gradients(ids[5:], torch.ones(5, 2))
    first = table.prefetch(ids[:4])
    with pytest.raises(CacheTooSmallError, match=r"7 distinct keys.*6 rows"):
        table.prefetch(ids[3:7])
    second = table.prefetch(ids[2:6])  # two of them are the first's
    second.wait()
    with pytest.raises(CacheTooSmallError, match=r"1 rows must be fetched.*of its 6 rows only 0"):
        table.apply_gradients(ids[6:7], torch.ones(1, 2))
    assert set(table.fast.lookup(ids[:6]).rows.tolist()) != {0.0}
    first.release()
    first.release()
    assert int(table.resident.pins.max()) == 1
    second.release()
    table.apply_gradients(ids[6:7], torch.ones(1, 2))
    assert int(table.resident.pins.max()) == 0


def test_pinned_rows_stay_and_others_leave() -> None:
    table = _cache(4)
    for i in range(8):
        table.apply_gradients(torch.tensor([i]), torch.ones(1, 2))
        table.apply_gradients(torch.tensor([i]), torch.ones(1, 2))
    held = table.prefetch(torch.tensor([1, 2]))
    held.wait()
    for i in range(8):
        table.apply_gradients(torch.tensor([i]), torch.ones(1, 2))
        assert table.fast.contains(torch.tensor([1, 2])).all()
    held.release()
    assert table.stats()["cache_evictions"] > 4


def test_an_erased_row_takes_its_pin_along() -> None:
    table, ids = _cache(2), torch.tensor([1])
    table.apply_gradients(ids, torch.ones(1, 2))
    held = table.prefetch(ids)
    held.wait()
    table.erase(ids)
    table.apply_gradients(ids, torch.ones(1, 2))
    table.apply_gradients(ids, torch.ones(1, 2))  # fetched to the same place
    held.release()
    assert int(table.resident.pins.min()) == 0


def test_a_refused_update_changes_no_tier() -> None:
    table = _hybrid(CONFIG, CONFIG)
    ids = torch.arange(8)
    table.apply_gradients(ids, torch.ones(8, 2))
    before = everything(table)
    for bad in range(8):
        grads = torch.ones(8, 2)
        grads[bad, 1] = float("nan")
        with pytest.raises(NotFiniteError):
            table.apply_gradients(ids, grads)
        with pytest.raises(NotFiniteError):
            table.assign(ids, grads)
    assert everything(table) == before


@pytest.mark.parametrize(
    ("fast", "slow", "message"),
    [
        (replace(CONFIG, seed=8), CONFIG, "differ in their configs"),
        (replace(CONFIG, admit=Count(2)), replace(CONFIG, admit=Count(2)), "admit=None"),
        (SERVING, SERVING, "serving table"),
    ],
)
def test_tables_that_cannot_live_in_two_tiers(
    fast: TableConfig, slow: TableConfig, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _hybrid(fast, slow)


def test_stores_must_be_empty() -> None:
    full = HostTable(CONFIG)
    full.assign(torch.tensor([1]), torch.ones(1, 2))
    with pytest.raises(ConfigError, match=r"slow store.*has 1 rows already"):
        HybridTable(HostTable(CONFIG), full, fast_rows=4)


def test_a_step_that_held_rows_leave_no_room_for_changes_no_table() -> None:
    """Each table by itself, as equal ids that step one by one are."""
    configs = [table_config(dim=2, name=name) for name in ("a", "b")]
    made = [CachingTable(HostTable(c), HostTable(c), cache_rows=6) for c in configs]
    store, ids, later = TierTables(made), torch.arange(4), torch.arange(10, 14)
    keys, grads = TableKeys(torch.cat([ids, ids]), (0, 4, 8)), torch.ones(16)
    store.apply_gradients(keys, grads)
    store.table(1).assign(later, torch.ones(4, 2))
    with store.table(1).prefetch(later) as held:
        held.wait()
        before = [everything(store.table(k)) for k in range(2)]
        with pytest.raises(CacheTooSmallError, match="table 'b': 4 rows must be fetched"):
            store.apply_gradients(keys, grads, per_occurrence=True)
        assert [everything(store.table(k)) for k in range(2)] == before
    store.apply_gradients(keys, grads, per_occurrence=True)
