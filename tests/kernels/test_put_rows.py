"""Rows that come from elsewhere are put where slots were taken; uses are marked."""

from __future__ import annotations

import pytest
import torch

from hedgerow.kernels import find, find_or_insert, mark, put_rows, seat
from hedgerow.kernels.layout import TIMES, Arrays

from .cases import some_ids, values


@pytest.mark.parametrize(("dim", "states"), [(3, 0), (4, 9), (33, 2)])
def test_rows_states_and_times_come_to_their_slots_and_nowhere_else(
    device: torch.device, dim: int, states: int
) -> None:
    table = Arrays.make_several([2, 3], dim, device, states)
    ids = some_ids(40, seed=1).to(device)
    splits = torch.tensor([0, 15, 40], device=device)
    slots, new = find_or_insert.find_or_insert(table, ids, splits)
    rows, raw = (values(40, width, seed=width).to(device) for width in (dim, states))
    times = torch.arange(40, device=device)
    put = seat.seat(table, ids, torch.where(times % 3 > 0, slots, -1), None, splits, insert=False)
    before = table.values.clone()
    put_rows.put_rows(table, put, rows, raw, times)
    there = put.long()[put >= 0]
    chosen = (put >= 0).cpu()
    assert bool(new.all()) or bool((slots < 0).any())
    assert len(there) > 20
    wanted = before.clone()
    wanted[there, :dim], wanted[there, dim : dim + states] = rows[chosen], raw[chosen]
    assert torch.equal(table.values, wanted)
    assert torch.equal(table.read(TIMES, there), times[chosen])
    numbered = table.numbered(find.find(table, ids, None, splits), splits)
    assert torch.equal(numbered[chosen], there)


def test_known_slots_are_numbered_and_nothing_is_inserted(device: torch.device) -> None:
    table = Arrays.make_several([2, 2], 1, device)
    ids = some_ids(20, seed=3).to(device)
    splits = torch.tensor([0, 10, 20], device=device)
    known = torch.full_like(ids, -1)
    assert bool((seat.seat(table, ids, known, None, splits, insert=False) == -1).all())
    assert not bool(table.taken().any())


def test_marks(device: torch.device) -> None:
    used = torch.zeros(9, dtype=torch.int32, device=device)
    changed = torch.zeros(9, dtype=torch.bool, device=device)
    mark.mark(torch.tensor([3, -1, 8, 3], dtype=torch.int32, device=device), used, None, 7)
    assert used.tolist() == [0, 0, 0, 7, 0, 0, 0, 0, 7]
    mark.mark(torch.tensor([-5, 0], dtype=torch.int32, device=device), used, changed, 8)
    assert used.tolist() == [8, 0, 0, 7, 0, 0, 0, 0, 7]
    assert changed.tolist() == [True, *[False] * 8]
    mark.mark(torch.empty(0, dtype=torch.int32, device=device), used, changed, 9)
    assert used.max() == 8
