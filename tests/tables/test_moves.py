"""Rows on their way to another store of their table: whole, and unnoticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow.tables.device import DeviceTable
from hedgerow.tables.host import HostTable
from hedgerow.tables.optimizers import Adam

from ..support import everything, table_config, twin_of

CONFIG = table_config(Adam(lr=0.1), dim=3)
IDS = torch.tensor([5, -1, 0, 9])


def _stores(device: torch.device) -> dict[str, Any]:
    return {
        "host": HostTable(CONFIG),
        "twin": twin_of(CONFIG),
        "device": DeviceTable(CONFIG, capacity_rows=64, device=device),
    }


@pytest.mark.parametrize("kind", ["host", "twin", "device"])
def test_a_move_there_and_back_changes_nothing(kind: str, device: torch.device) -> None:
    source, there = HostTable(CONFIG), _stores(device)[kind]
    source.apply_gradients(IDS, torch.ones(4, 3), ts=7)
    overflowed = source.read_out(IDS[1:2])
    overflowed.rows[0, 0] = float("inf")
    source.move_in(overflowed)
    before = everything(source)
    consumers = [t.touched("all", capacity=100, all_changes=True) for t in (source, there)]
    counted = [_counts(t) for t in (source, there)]
    rows = source.read_out(IDS[:3])
    assert there.move_in(rows).all()
    source.move_out(IDS[:3])
    assert (source.size(), there.size()) == (1, 3)
    assert source.contains(IDS).tolist() == [False, False, False, True]
    back = there.read_out(IDS)
    assert back.found.tolist() == [True, True, True, False]
    source.move_in(back.where(back.found))
    there.move_out(IDS)
    assert there.size() == 0
    assert everything(source) == before
    assert [len(one.take()) for one in consumers] == [0, 0]
    assert [_counts(t) for t in (source, there)] == counted
    assert (source.max_ts(), there.max_ts()) == (7, 0)


def test_a_snapshot_keeps_rows_that_move_away_and_lacks_those_that_come() -> None:
    source, there = HostTable(CONFIG), HostTable(CONFIG)
    source.assign(IDS, torch.ones(4, 3))
    with source.snapshot() as left, there.snapshot() as right:
        there.move_in(source.read_out(IDS))
        source.move_out(IDS)
        assert sorted(i for part in left.scan() for i in part.ids.tolist()) == [-1, 0, 5, 9]
        assert not list(right.scan())


def _counts(table: Any) -> Any:
    if isinstance(table, HostTable):
        return table.core.native_table.counted()
    return [table.stats()[name] for name in ("inserted", "refused", "dropped", "erased")]
