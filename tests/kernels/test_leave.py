"""Rows that were not used for long are chosen, table by table, and leave."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hedgerow.kernels import find, leave
from hedgerow.kernels.layout import EMPTY, ERASED, LANES, TIMES, Arrays
from tests.twins import kernels_table, kernels_tiers

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
        at, _ = find.find_or_insert(self.table, self.ids, self.splits)
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

    def choose(
        self, oldest: list[int], most: list[int], limit: int, turn: int = 0
    ) -> leave.EvictionCandidates:
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
    back, born = find.find_or_insert(caches.table, caches.ids, caches.splits)
    assert bool((back >= 0).all())
    assert torch.equal(born, gone)


class Crowded:
    """Tables of 1, 2 and 4 buckets with a row in nearly every slot, each used at its own time."""

    def __init__(self, device: torch.device, seed: int = 3) -> None:
        random = torch.Generator().manual_seed(seed)
        self.device, self.table = device, Arrays.make_several([1, 2, 4], 1, device)
        slots = len(self.table.values)
        self.used = 1 + torch.randperm(slots, generator=random).int()
        self.used[LANES * torch.tensor([3, 8]) + 5] = leave.NEVER  # free, in two of the tables
        self.changed = torch.rand(slots, generator=random) < 0.5
        self.keys = some_ids(60, seed=seed)
        for line in (0, TIMES):
            words = torch.randint(2**40, (slots,), generator=random)
            self.table.write(line, torch.arange(slots, device=device), words.to(device))

    def around(self, i: int) -> Tensor:
        """The slots of the two buckets of a key of table i // 20, numbered through all tables."""
        assert self.table.spans is not None
        first, count = self.table.spans[i // 20].tolist()
        pair = kernels_table.place(self.keys[i : i + 1], count)
        return torch.cat([(first + int(own)) * LANES + torch.arange(LANES) for own in pair])

    def is_full(self, i: int) -> bool:
        """Whether they all have rows."""
        return not bool((self.used[self.around(i)] == leave.NEVER).any())

    def single_out(
        self, which: list[int], limit: int, room: int = 20, oldest: tuple[int, ...] = (0, 0, 0)
    ) -> leave.EvictionCandidates:
        """What the kernel adds to one that has chosen nothing yet; its twin adds the same."""
        counts = torch.tensor([sum(i // 20 == k for i in which) for k in range(3)])
        splits = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        made = []
        for single_out, device in (
            (leave.single_out, self.device),
            (kernels_tiers.single_out, torch.device("cpu")),
        ):
            there = [x.to(device, copy=True) for x in (self.keys[which], splits, self.used)]
            old = torch.tensor(oldest, dtype=torch.int32, device=device)
            chosen = leave.EvictionCandidates(
                torch.arange(4, device=device) * room,
                limit,
                *torch.full((4, 3 * room), -1, device=device),
                torch.zeros(3, 3, dtype=torch.int64, device=device),
            )
            table = replace(
                self.table,
                index=self.table.index.to(device),
                values=self.table.values.to(device),
                spans=None if self.table.spans is None else self.table.spans.to(device),
            )
            flags = self.changed.to(device, copy=True)
            single_out(table, chosen, there[0], there[1], old, there[2], flags)
            assert torch.equal(there[2].cpu(), self.used)  # who reads behind caches relies on it
            assert torch.equal(flags.cpu(), self.changed)
            made.append(chosen)
        ours, model = made
        for name in ("counts", "going", "dirty", "ids", "times"):
            assert torch.equal(getattr(ours, name).cpu(), getattr(model, name)), name
        return model


@pytest.mark.parametrize("limit", [1000, 60, 0])
def test_the_oldest_of_two_full_buckets_is_singled_out(device: torch.device, limit: int) -> None:
    crowded, found = Crowded(device), 0
    for i in range(60):
        chosen, used = crowded.single_out([i], limit), crowded.used[crowded.around(i)]
        going = chosen.going[chosen.going >= 0]
        if not crowded.is_full(i) or int(used.min()) > limit:
            assert len(going) == 0
        else:
            assert crowded.used[going].tolist() == [int(used.min())]
            assert chosen.counts[i // 20].tolist() == [1, int(crowded.changed[going]), 0]
            assert torch.equal(chosen.going[20 * (i // 20)], going[0])
            found += 1
    assert (found > 20) == (limit > 0)


def test_for_each_key_another_row_is_singled_out(device: torch.device) -> None:
    crowded = Crowded(device)
    which = [i for i in range(60) if crowded.is_full(i)][:40]
    chosen = crowded.single_out(which, 1000)
    going = chosen.going[chosen.going >= 0]
    assert len(going) == len(which) - max(0, sum(i < 20 for i in which) - LANES)
    assert len(torch.unique(going)) == len(going)
    oldest = crowded.used[:LANES].sort().values  # all of table 0 have the same bucket
    assert torch.equal(crowded.used[chosen.going[:LANES]], oldest)
    dirty = chosen.dirty[chosen.dirty >= 0]
    assert torch.equal(dirty.sort().values, going[crowded.changed[going]].sort().values)


def test_no_more_are_singled_out_than_there_is_room_for(device: torch.device) -> None:
    crowded = Crowded(device)
    chosen = crowded.single_out([i for i in range(60) if crowded.is_full(i)], 1000, room=3)
    assert int(chosen.counts[0, 0]) == int((chosen.going[:3] >= 0).sum()) == 3


def test_of_a_table_that_makes_room_nothing_is_singled_out(device: torch.device) -> None:
    crowded = Crowded(device)
    which = [i for i in range(60) if crowded.is_full(i)]
    chosen = crowded.single_out(which, 1000, oldest=(7, 0, 7))
    assert chosen.counts[[0, 2]].sum() == 0
    assert (int(chosen.counts[1, 0]) > 0) == any(20 <= i < 40 for i in which)
