"""Rows that come to caches of several tables while others come, leave or are written."""

from __future__ import annotations

import pytest
import torch

from hedgerow.tiers import device_cache_places
from hedgerow.tiers.reads_behind import Behind

from .test_together_beside import _after_once, _keys, _on, _pair


def test_a_row_that_came_by_another_hand_is_read(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = _pair(device, fast_rows=16, slots=32)
    for ids in ((0, 1, 2), (3, 4), (3, 4)):
        pair.step(_keys(*ids))
    table, keys = pair.ours.table(0), _keys(0, 1, 2, 3)
    batches = []

    def bring() -> None:
        batches.append(table.prefetch(torch.tensor([0, 1], device=device)))
        batches[0].wait()

    _after_once(monkeypatch, Behind, "read", bring)
    found = pair.ours.lookup(_on(device, keys), missing="training")
    assert batches
    assert torch.equal(found.rows.cpu(), pair.model.lookup(keys, missing="training").rows)


def test_a_large_cache_is_asked_for_more_rows_than_it_has_slots(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_cache_places, "_MANY_SLOTS", 8)
    monkeypatch.setattr(device_cache_places, "_SAMPLE", 8)
    pair = _pair(device)
    for first in (0, 0, 60, 60):
        pair.step(_keys(*range(first, first + 60)))
    assert pair.stat("cache_evictions") > 0
    pair.compare()
