"""Kernels that go through all slots: rows by time, and growth that keeps times, scores and pins."""

from __future__ import annotations

import pytest
import torch

from hedgerow.kernels import evict, find
from hedgerow.kernels import slots as rehash
from hedgerow.kernels import slots as select
from hedgerow.kernels.layout import SCORES, TIMES, Arrays
from tests.twins import kernels_eviction

from .cases import content, moved, same_bits, some_ids, values

CPU = torch.device("cpu")


def _table(device: torch.device, *, scored: bool = False) -> Arrays:
    """Rows of times 0 to 6, the odd ids among them, some held."""
    ids = some_ids(50, seed=4).to(device)
    table = Arrays.make(4, 3, device, 2, scored=scored, pinned=True)
    evict.insert_and_evict(table, ids, torch.arange(50, device=device) % 7, call=1)
    slots = find.find(table, ids)
    table.write(TIMES, slots[slots >= 0], torch.arange(50, device=device)[slots >= 0] % 7)
    evict.pin(table, slots[::5])
    table.values.copy_(values(len(table.values), table.stride, seed=2).to(device))
    return table


@pytest.mark.parametrize(("low", "high"), [(2, 5), (0, 99), (9, 99)])
def test_rows_of_a_time_are_found_in_order_and_taken_out(
    device: torch.device, low: int, high: int
) -> None:
    ours = _table(device)
    model = moved(ours, CPU)
    for got, wanted in zip(
        select.select(ours, low, high), kernels_eviction.select(model, low, high), strict=True
    ):
        same_bits(got, wanted)
    same_bits(select.erase_if(ours, low, high), kernels_eviction.erase_if(model, low, high))
    same_bits(ours.index, model.index)
    assert ours.pins is not None
    held = ours.pins > 0
    assert bool(ours.taken()[held].all())


@pytest.mark.parametrize("buckets", [9, 4])
def test_growth_keeps_rows_times_scores_and_pins(device: torch.device, buckets: int) -> None:
    table = _table(device, scored=True)
    larger = Arrays.make(buckets, 3, device, 2, scored=True, pinned=True)
    where = rehash.rehash(table, larger)
    old = table.taken().nonzero()[:, 0]
    new = where[old]
    assert bool((new >= 0).all())
    assert content(moved(larger, CPU)) == content(moved(table, CPU))
    same_bits(larger.ids(new), table.ids(old).cpu())
    same_bits(larger.read(SCORES, new), table.read(SCORES, old).cpu())
    assert larger.pins is not None
    assert table.pins is not None
    same_bits(larger.pins[new], table.pins[old].cpu())
    assert int(larger.pins.sum()) == int(table.pins.sum()) > 0
    twin = Arrays.make(buckets, 3, CPU, 2, scored=True, pinned=True)
    there = kernels_eviction.rehash(moved(table, CPU), twin)
    assert content(twin) == content(moved(larger, CPU))
    assert torch.equal(there >= 0, where.cpu() >= 0)
