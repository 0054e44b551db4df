"""Rows that were not used for long are chosen, table by table, and leave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hedgerow.kernels import find, find_or_insert, leave, reference, reference_tiers
from hedgerow.kernels.layout import EMPTY, ERASED, LANES, TIMES, Arrays

from .cases import some_ids

BUCKETS = [7, 40]
SPLITS = (0, 60, 400)


class Caches:
    """Two tables with rows, each last used at a time of its own; some are changed."""

    def __init__(self, device: torch.device, seed: int = 5) -> None:
        self.table = Arrays.make_several(BUCKETS, 2, device)
        self.ids = some_ids(SPLITS[-1], seed=seed).to(device)
        self.ids[7] = EMPTY
        self.special = (self.ids == EMPTY) | (self.ids == ERASED)  # they look like free places
        self.splits = torch.tensor(SPLITS, device=device)
        at, _ = find_or_insert.find_or_insert(self.table, self.ids, self.splits)
        self.slots = self.table.numbered(at, self.splits)
        assert bool((self.slots >= 0).all())
        random = torch.Generator().manual_seed(seed)
        slots = len(self.table.values)
        self.when = torch.randint(0, 50, (SPLITS[-1],), generator=random).to(device)
        self.used = torch.full((slots,), leave.NEVER, dtype=torch.int32, device=device)
        self.used[self.slots] = self.when.int()
        self.changed = torch.zeros(slots, dtype=torch.bool, device=device)
        self.changed[self.slots] = self.when % 3 == 0
        self.table.write(TIMES, self.slots, 1000 + torch.arange(SPLITS[-1], device=device))

    def choose(self, oldest: list[int], most: list[int], limit: int, turn: int = 0) -> leave.Chosen:
        device = self.used.device
        starts = torch.tensor([0, most[0], sum(most)], device=device)
        old = torch.tensor(oldest, dtype=torch.int32, device=device)
        return leave.choose_old(
            *(self.table, self.used, self.changed, old, starts),
            room=sum(most),
            buckets=max(BUCKETS),
            limit=limit,
            turn=turn,
        )

    def full(self) -> Tensor:
        """Which slots are the oldest of a bucket with hardly any room."""
        found = torch.zeros(len(self.used), dtype=torch.bool, device=self.used.device)
        taken = self.table.taken()
        first = 0
        for count in BUCKETS:
            for bucket in range(first, first + count):
                part = slice(bucket * LANES, (bucket + 1) * LANES)
                if int(taken[part].sum()) >= LANES - 1:
                    found[bucket * LANES + int(self.used[part].argmin())] = True
            first += count + 1
        return found


@pytest.mark.parametrize("limit", [49, 12])
def test_rows_up_to_an_age_are_chosen_and_changed_ones_listed(
    device: torch.device, limit: int
) -> None:
    caches = Caches(device)
    chosen = caches.choose([20, 5], [60, 340], limit)
    first = torch.arange(SPLITS[-1], device=device) < SPLITS[1]
    old = torch.where(first, caches.when <= 20, caches.when <= 5) | caches.full()[caches.slots]
    old &= (caches.when <= limit) & ~caches.special
    for k, (start, stop) in enumerate([SPLITS[:2], SPLITS[1:]]):
        mine = old[start:stop]
        changed = mine & (caches.when[start:stop] % 3 == 0)
        room = slice(start, stop)
        going = chosen.going[room]
        assert torch.equal(going[going >= 0].sort().values, caches.slots[room][mine].sort().values)
        assert chosen.counts[k].tolist() == [
            int(mine.sum()),
            int(changed.sum()),
            stop - start,
        ]
        n = int(changed.sum())
        order = chosen.dirty[room][:n].argsort()
        wanted = caches.slots[room][changed].argsort()
        assert torch.equal(chosen.dirty[room][:n][order], caches.slots[room][changed][wanted])
        assert torch.equal(chosen.ids[room][:n][order], caches.ids[room][changed][wanted])
        at = 1000 + torch.arange(start, stop, device=device)
        assert torch.equal(chosen.times[room][:n][order], at[changed][wanted])
        assert bool((chosen.dirty[room][n:] == -1).all())


def test_no_more_are_chosen_than_there_is_room_for(device: torch.device) -> None:
    caches = Caches(device)
    chosen = caches.choose([49, 49], [9, 0], 49, turn=3)
    assert int((chosen.going >= 0).sum()) == 9
    assert len(torch.unique(chosen.going)) == 9
    assert bool(torch.isin(chosen.going, caches.slots[: SPLITS[1]]).all())
    assert int(chosen.counts[0, 0]) > 9
    assert chosen.counts[:, 2].tolist() == [SPLITS[1], SPLITS[2] - SPLITS[1]]
    assert int(chosen.counts[1, 1]) == 0


def test_chosen_rows_that_were_not_used_since_leave_and_others_stay(device: torch.device) -> None:
    caches = Caches(device)
    chosen = caches.choose([20, 5], [60, 340], 40)
    slots = chosen.going[chosen.going >= 0]
    changed = caches.changed.clone()
    leave.clean(chosen, caches.changed)
    dirty = chosen.dirty[chosen.dirty >= 0]
    assert len(dirty) > 3
    changed[dirty] = False
    assert torch.equal(caches.changed, changed)
    again, used = slots[0], slots[1]
    caches.changed[again], caches.used[used] = True, 41
    left = torch.tensor([5, 7], device=device)
    leave.take_out(caches.table, chosen, caches.used, caches.changed, left)
    gone = torch.isin(caches.slots, slots[2:])
    found = find.find(caches.table, caches.ids, None, caches.splits)
    assert torch.equal(found < 0, gone)
    assert left.tolist() == [5 + int(gone[: SPLITS[1]].sum()), 7 + int(gone[SPLITS[1] :].sum())]
    assert bool((caches.used[caches.slots[gone]] == leave.NEVER).all())
    stay = ~gone & (caches.slots != used)
    assert torch.equal(caches.used[caches.slots[stay]], caches.when[stay].int())
    back, born = find_or_insert.find_or_insert(caches.table, caches.ids, caches.splits)
    assert bool((back >= 0).all())
    assert torch.equal(born, gone)


class Crowded:
    """Tables of 1, 2 and 4 buckets with a row in nearly every slot, each used at its own time."""

    def __init__(self, seed: int) -> None:
        self.table = Arrays.make_several([1, 2, 4], 1, torch.device("cpu"))
        random = torch.Generator().manual_seed(seed)
        self.used = 1 + torch.randperm(len(self.table.values), generator=random).int()
        free = LANES * torch.tensor([3, 8]) + 5  # of two buckets of the second and third table
        self.used[free] = leave.NEVER
        self.splits = torch.tensor([0, 20, 40, 60])
        self.ids = some_ids(60, seed=seed)

    def buckets(self, i: int) -> list[int]:
        """The two of an id, numbered through all tables."""
        assert self.table.spans is not None
        first, count = self.table.spans[i // 20].tolist()
        return [first + int(own) for own in reference.place(self.ids[i : i + 1], count)]

    def around(self, i: int) -> Tensor:
        """The slots of both."""
        return torch.cat([bucket * LANES + torch.arange(LANES) for bucket in self.buckets(i)])

    def single_out(self, device: torch.device, which: slice, limit: int) -> Tensor:
        """When slots were used, as the kernel leaves it."""
        ids, used = self.ids[which].to(device), self.used.to(device, copy=True)
        splits = (self.splits - (which.start or 0)).clamp(0, len(ids)).to(device)
        assert self.table.spans is not None
        table = Arrays.make_several([1, 2, 4], 1, device)
        leave.single_out(table, ids, splits, used, limit)
        model = self.used.clone()
        twin = splits.cpu()
        reference_tiers.single_out(self.table, self.ids[which], twin, model, limit)
        if len(ids) < 2:  # of several it depends on who comes first
            assert torch.equal(used.cpu(), model)
        return used.cpu()


@pytest.mark.parametrize("limit", [1000, 60, 0])
def test_the_oldest_of_two_full_buckets_is_singled_out(device: torch.device, limit: int) -> None:
    crowded, found = Crowded(3), 0
    for i in range(60):
        used = crowded.single_out(device, slice(i, i + 1), limit)
        around = crowded.used[crowded.around(i)]
        changed = (used != crowded.used).nonzero()[:, 0].tolist()
        if bool((around == leave.NEVER).any()) or int(around.min()) > limit:
            assert changed == []
        else:
            assert used[changed].tolist() == [0]
            assert crowded.used[changed].tolist() == [int(around.min())]
            found += 1
    assert (found > 20) == (limit > 0)


def test_many_ids_at_once_single_out_one_row_each_at_most(device: torch.device) -> None:
    crowded = Crowded(4)
    used = crowded.single_out(device, slice(0, 60), 1000)
    changed = used != crowded.used
    full = 0
    for i in range(60):
        around = crowded.around(i)
        if not bool((crowded.used[around] == leave.NEVER).any()):
            assert int(used[around].min()) == 0
            full += 1
    assert 3 <= int(changed.sum()) <= full
    assert bool((used[changed] == 0).all())
    nobody = crowded.single_out(device, slice(0, 0), 1000)
    assert torch.equal(nobody, crowded.used)


def test_of_a_table_that_need_not_make_room_only_who_was_singled_out_leaves(
    device: torch.device,
) -> None:
    caches = Caches(device)
    caches.used[caches.slots] += 1  # times of uses begin there
    assert int(caches.choose([0, 0], [60, 340], 60).counts[:, 0].sum()) == 0
    ordinary = caches.slots[~caches.special]
    caches.used[ordinary[[3, 70]]] = 0
    chosen = caches.choose([0, 0], [60, 340], 60)
    assert torch.equal(
        chosen.going[chosen.going >= 0].sort().values, ordinary[[3, 70]].sort().values
    )
