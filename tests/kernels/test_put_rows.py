"""Rows that come from elsewhere are put where slots were taken; uses are marked."""

from __future__ import annotations

import pytest
import torch

from hedgerow.kernels import find, incoming_rows, leave, runs
from hedgerow.kernels.layout import TIMES, Arrays

from .cases import coming_of, some_ids, values


@pytest.mark.parametrize(("dim", "states"), [(3, 0), (4, 9), (33, 2)])
def test_rows_states_and_times_come_to_ids_that_have_none_and_nowhere_else(
    device: torch.device, dim: int, states: int
) -> None:
    table = Arrays.make_several([2, 3], dim, device, states)
    ids = some_ids(40, seed=1).to(device)
    ids[39] = ids[38]  # of equal ids one gets its row
    splits = torch.tensor([0, 15, 40], device=device)
    known = (torch.arange(40, device=device) % 5 == 0) & (ids != ids[38])
    find.find_or_insert(table, ids, splits, known)
    rows, raw = (values(40, width, seed=width).to(device) for width in (dim, states))
    times = torch.arange(40, device=device)
    wanted, before = times % 7 > 0, table.values.clone()
    uses = incoming_rows.ArrivalCounts(
        torch.zeros(len(table.values), dtype=torch.int32, device=device),
        torch.ones(2, dtype=torch.int64, device=device),
    )
    coming = coming_of(splits, ids, wanted, rows, raw, times)
    at = incoming_rows.put_rows(table, coming, uses, 6).long()
    came = at >= 0
    assert not bool((came & (known | ~wanted)).any())
    assert int(came[38:].sum()) == 1
    assert int(came.sum()) > 20
    there, after = at[came], before.clone()
    after[there, :dim], after[there, dim : dim + states] = rows[came], raw[came]
    assert torch.equal(table.values, after)
    assert torch.equal(table.read(TIMES, there), times[came])
    assert torch.equal(uses.used.nonzero()[:, 0], there.sort().values)
    assert bool((uses.used[there] == 6).all())
    assert uses.came.tolist() == [1 + int(came[:15].sum()), 1 + int(came[15:].sum())]
    numbered = table.numbered(find.find(table, ids, None, splits), splits)
    assert torch.equal(numbered[came], there)
    assert bool((numbered[~came & wanted & (ids != ids[38])] >= 0).all())


def test_ids_without_a_row_are_listed_by_table(device: torch.device) -> None:
    table = Arrays.make_several([2, 3], 1, device)
    ids = some_ids(300, seed=9).to(device)
    splits = torch.tensor([0, 100, 300], device=device)
    known = torch.arange(300, device=device) % 9 == 0
    slots, _ = find.find_or_insert(table, ids, splits, known)
    used = torch.zeros(len(table.values), dtype=torch.int32, device=device)
    found = incoming_rows.absent(table, ids, splits, used, 7)
    out, counts = found.words[4:], found.words[:2]
    there = table.numbered(slots, splits)
    assert torch.equal((used == 7).nonzero()[:, 0], there[there >= 0].sort().values)
    again = incoming_rows.absent_slots(ids, slots, splits, 200)
    assert torch.equal(again.words[:2], counts)
    listed = zip(again.words[4:].split(200), again.at.split(200), strict=True)
    parts = zip([(0, 100), (100, 300)], listed, strict=True)
    for k, ((start, stop), (keys, at)) in enumerate(parts):
        lacking = ids[start:stop][slots[start:stop] < 0]
        assert counts[k] == len(lacking)
        part = slice(start, start + len(lacking))
        assert torch.equal(out[part].sort().values, lacking.sort().values)
        at = at[: len(lacking)]
        assert torch.equal(at.sort().values, start + (slots[start:stop] < 0).nonzero()[:, 0])
        assert torch.equal(keys[: len(lacking)], ids[at])
    assert incoming_rows.absent(table, ids[:0], splits * 0, used, 7).words.tolist() == [0] * 4
    assert incoming_rows.absent_slots(ids[:0], slots[:0], splits * 0, 3).words[:2].tolist() == [
        0,
        0,
    ]


def test_known_slots_are_numbered_and_nothing_is_inserted(device: torch.device) -> None:
    table = Arrays.make_several([2, 2], 1, device)
    ids = some_ids(20, seed=3).to(device)
    splits = torch.tensor([0, 10, 20], device=device)
    known = torch.full_like(ids, -1)
    assert bool((runs.seat(table, ids, known, None, splits, insert=False) == -1).all())
    assert not bool(table.taken().any())


def test_known_slots_are_marked(device: torch.device) -> None:
    table = Arrays.make_several([2, 2], 1, device)
    ids = some_ids(20, seed=3).to(device)
    splits = torch.tensor([0, 10, 20], device=device)
    slots, _ = find.find_or_insert(table, ids, splits)
    slots[4] = -1
    used = torch.zeros(len(table.values), dtype=torch.int32, device=device)
    changed = torch.zeros(len(table.values), dtype=torch.bool, device=device)
    for flags, now in ((None, 5), (changed, 6)):
        marks = runs.Marks(used, flags, now)
        at = runs.seat(table, ids, slots, None, splits, insert=False, marks=marks)
        assert torch.equal(at.long(), table.numbered(slots, splits))
        assert torch.equal((used == now).nonzero()[:, 0], at[at >= 0].long().sort().values)
        assert torch.equal(changed, (used == 6))


def test_marks(device: torch.device) -> None:
    used = torch.zeros(9, dtype=torch.int32, device=device)
    changed = torch.zeros(9, dtype=torch.bool, device=device)
    leave.mark(torch.tensor([3, -1, 8, 3], dtype=torch.int32, device=device), used, None, 7)
    assert used.tolist() == [0, 0, 0, 7, 0, 0, 0, 0, 7]
    leave.mark(torch.tensor([-5, 0], dtype=torch.int32, device=device), used, changed, 8)
    assert used.tolist() == [8, 0, 0, 7, 0, 0, 0, 0, 7]
    assert changed.tolist() == [True, *[False] * 8]
    leave.mark(torch.empty(0, dtype=torch.int32, device=device), used, changed, 9)
    assert used.max() == 8
