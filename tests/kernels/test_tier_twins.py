"""Kernels that move rows of several tables between stores give what their plain twins give."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from hedgerow.kernels import incoming_rows, leave, lookup
from hedgerow.kernels.layout import EMPTY, ERASED, KEYS, LANES, NEWBORN, TIMES, Arrays
from tests.twins import kernels_table, kernels_tiers

from .cases import ODD_IDS, coming_of, content, moved, same_bits, some_ids, values
from .test_step import _alone

CPU = torch.device("cpu")
FILES = (incoming_rows, leave, leave, incoming_rows)
# Buckets of each table and ids for each: for one and for two buckets there are too many.
SHAPES = [((2,), (70,)), ((1, 6, 2), (50, 70, 0)), ((2, 1, 1, 5, 1), (60, 0, 40, 60, 40))]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tables on the CPU with rows and erased places, and ids of which some have rows."""

    table: Arrays
    ids: Tensor
    splits: Tensor
    used: Tensor  # of slots with rows 0 to 9
    changed: Tensor

    @property
    def shares(self) -> list[tuple[int, int]]:
        """Where the ids of each table begin and end."""
        return list(pairwise(self.splits.tolist()))

    def slots(self) -> Tensor:
        """Where the ids are, each table's own numbers."""
        found = [
            kernels_table.find(_alone(self.table, k), self.ids[start:stop])
            for k, (start, stop) in enumerate(self.shares)
        ]
        return torch.cat(found)


def _batch(
    buckets: Sequence[int],
    shares: Sequence[int],
    dim: int = 1,
    states: int = 0,
    *,
    every: int = 3,
    lines: int = 2,
    seed: int = 0,
) -> Batch:
    """Every so many ids have rows, for which there is room; each table gets all the odd ids."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.cat([_ids(n, 100 * seed + k) for k, n in enumerate(shares)])
    splits = torch.tensor([0, *accumulate(shares)])
    table = Arrays.make_several(buckets, dim, CPU, states)
    n, slots = len(ids), len(table.values)
    uses = incoming_rows.ArrivalCounts(
        torch.full((slots,), leave.NEVER, dtype=torch.int32),
        torch.zeros(len(buckets), dtype=torch.int64),
    )
    rows, raw = values(n, dim, seed=1), values(n, states, seed=2)
    wanted, times = torch.arange(n) % every == 0, torch.arange(n) + 1000
    coming = coming_of(splits, ids, wanted, rows, raw, times)
    kernels_tiers.put_rows(table, coming, uses, 0)
    there = table.taken().nonzero()[:, 0]
    gone = there[(table.read(KEYS, there) == table.ids(there)).nonzero()[::17, 0]]  # none special
    table.write(KEYS, gone, ERASED)
    table.write(TIMES, gone, NEWBORN)
    when = torch.randint(10, (slots,), generator=random, dtype=torch.int32)
    used = torch.where(table.taken(), when, leave.NEVER)
    changed = table.taken() & (torch.rand(slots, generator=random) < 0.4)
    index = torch.cat([table.index, *[table.index[:, 1:]] * (lines - 2)], dim=1)
    return Batch(replace(table, index=index), ids, splits, used, changed)


def _ids(n: int, seed: int) -> Tensor:
    """All ids of a pool once, the odd ones among them, and some of them again."""
    if n == 0:
        return torch.empty(0, dtype=torch.int64)
    again = n // 3
    ids = torch.cat([some_ids(n - again, seed), some_ids(again, seed, n - again)])
    assert set(ODD_IDS) <= set(ids.tolist())
    return ids[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]


def _there(table: Arrays, device: torch.device) -> Arrays:
    """A copy elsewhere, of all tables."""
    spans = None if table.spans is None else table.spans.to(device)
    return replace(moved(table, device), spans=spans)


def _on(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Copies, on the CPU too: what a kernel writes its twin must not see."""
    return [x.to(device, copy=True) for x in tensors]


def _same(ours: Sequence[Tensor], model: Sequence[Tensor]) -> None:
    for got, wanted in zip(ours, model, strict=True):
        same_bits(got, wanted)


def _pairs(listing: incoming_rows.MissList, k: int, count: int) -> list[tuple[int, int]]:
    """Position and id of the first so many that are listed of a table, sorted."""
    first = k * listing.room if listing.cuts is None else int(listing.cuts[k])
    part = slice(first, first + count)
    words = listing.words[2 * listing.tables :]
    return sorted(zip(listing.at[part].tolist(), words[part].tolist(), strict=True))


def test_every_launcher_has_a_twin_with_its_arguments() -> None:
    launchers = {
        name: function
        for file in FILES
        for name, function in inspect.getmembers(file, inspect.isfunction)
        if function.__module__ == file.__name__ and not name.startswith("_")
    }
    assert sorted(launchers) == kernels_tiers.__all__
    for name, launcher in launchers.items():
        twin = getattr(kernels_tiers, name)
        assert inspect.signature(launcher) == inspect.signature(twin), name


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", range(3))
def test_ids_without_a_row_are_those_of_the_twin(
    device: torch.device, shape: int, seed: int
) -> None:
    batch = _batch(*SHAPES[shape], seed=seed)
    table = _there(batch.table, device)
    if shape == 0:  # nor need one table be one of several
        table = replace(table, spans=None)
    ids, splits, used = _on(device, batch.ids, batch.splits, batch.used)
    used[::3] += 100 * (used[::3] < 10).int()  # later than now: they stay
    batch.used[::3] += 100 * (batch.used[::3] < 10).int()
    room = (None, 60, 12)[seed]
    ours = incoming_rows.absent(table, ids, splits, used, 77, room)
    model = batch.used.clone()
    wanted = kernels_tiers.absent(batch.table, batch.ids, batch.splits, model, 77, room)
    every = kernels_tiers.absent(batch.table, batch.ids, batch.splits, model.clone(), 77)
    tables = len(batch.shares)
    numbers = wanted.words[: 2 * tables]
    _same((ours.words[: 2 * tables], used, table.index), (numbers, model, batch.table.index))
    assert bool((model == 77).any())
    assert len(ours.at) == len(wanted.at)
    for k, (count, (start, stop)) in enumerate(
        zip(numbers[:tables].tolist(), batch.shares, strict=True)
    ):
        assert count > 0 or start == stop
        listed = count if room is None else min(count, room)
        found = _pairs(ours, k, listed)
        assert len(set(found)) == listed
        assert set(found) <= set(_pairs(every, k, count))


@pytest.mark.parametrize("room", [0, 7, 900, None])
def test_slots_of_nothing_are_listed_as_far_as_there_is_room(
    device: torch.device, room: int | None
) -> None:
    random = torch.Generator().manual_seed(room or 1)
    ids = some_ids(1500, seed=3, distinct=400)  # more than a program looks at
    slots = torch.randint(-1, 2, (1500,), generator=random)
    splits = torch.tensor([0, 4, 4, 900, 1490, 1500])
    slots[:4], slots[1490:] = 5, -1
    ours = incoming_rows.absent_slots(*_on(device, ids, slots, splits), room=room)
    model = kernels_tiers.absent_slots(ids, slots, splits, room)
    all_of_them = kernels_tiers.absent_slots(ids, slots, splits, 1500)
    assert ours.words.shape == model.words.shape
    assert ours.at.shape == model.at.shape
    assert (ours.room, ours.tables) == (model.room, model.tables) == (room or 0, 5)
    assert (ours.cuts is None) == (model.cuts is None) == (room is not None)
    room = 1500 if room is None else room
    same_bits(ours.words[:5], model.words[:5])
    counts = model.words[:5].tolist()
    assert counts[:2] == [0, 0]
    assert min(counts[2:]) >= 10
    for k, count in enumerate(counts):
        pairs = _pairs(ours, k, min(count, room))
        if count <= room:
            assert pairs == _pairs(model, k, count)
        for listed in (pairs, _pairs(model, k, min(count, room))):
            assert len(set(listed)) == min(count, room)
            assert set(listed) <= set(_pairs(all_of_them, k, count))


@pytest.mark.parametrize(
    ("dim", "states", "with_rows"), [(3, 0, True), (130, 2, True), (2, 1, False)]
)
@pytest.mark.parametrize("shape", [1, 2])
def test_a_batch_that_waits_is_told_of_the_rows_that_its_twin_is(
    device: torch.device, shape: int, dim: int, states: int, with_rows: bool
) -> None:
    batch = _batch(*SHAPES[shape], dim=dim, states=states, seed=dim)
    n, slots = len(batch.ids), batch.slots()
    room = 80 if with_rows else None
    ours = incoming_rows.absent_slots(*_on(device, batch.ids, slots, batch.splits), room=room)
    model = incoming_rows.MissList(
        *(ours.words.cpu().clone(), ours.at.cpu(), ours.room), None if room else batch.splits
    )
    counts = model.words[: model.tables].tolist()
    begins = [k * 80 for k in range(model.tables)] if room else batch.splits.tolist()
    parts = [slice(start, start + m) for start, m in zip(begins, counts, strict=False)]
    ids = torch.cat([model.words[2 * model.tables :][part] for part in parts])
    at = torch.cat([model.at[part] for part in parts])
    starts, m = torch.tensor([0, *accumulate(counts)]), sum(counts)
    wanted = ids % 5 != 0  # of equal ids all or none
    given = (starts, ids, wanted, values(m, dim, seed=6), values(m, states, seed=7), ids)
    out = torch.full((n, dim), 9.0)
    ours.left.fill_(100)
    uses = incoming_rows.ArrivalCounts(batch.used, torch.zeros(len(counts), dtype=torch.int64))
    there, told = (
        _there(batch.table, device),
        incoming_rows.ArrivalCounts(*_on(device, uses.used, uses.came)),
    )
    known, outcome = _on(device, slots, out)
    incoming_rows.put_rows(
        *(there, coming_of(*_on(device, *given)), told, 7),
        incoming_rows.WaitingBatch(ours, known, outcome if with_rows else None),
    )
    kernels_tiers.put_rows(
        *(batch.table, coming_of(*given), uses, 7),
        incoming_rows.WaitingBatch(model, slots, out if with_rows else None),
    )
    _same((outcome, told.came), (out, uses.came))
    # Which of many find the last places of a table is not told: each as its own table says.
    found = torch.cat(
        [kernels_table.find(_alone(there, k), own) for k, own in enumerate(ids.split(counts))]
    )
    same_bits(known.cpu()[at], torch.where(wanted, found, -1))
    others = ~torch.isin(torch.arange(n), at)
    same_bits(known.cpu()[others], slots[others])
    for k, (start, stop) in enumerate(pairwise(starts.tolist())):
        assert int(ours.left[k]) == 100 + int((known.cpu()[at[start:stop]] < 0).sum())
    assert 0 < int((known.cpu()[at] >= 0).sum()) < m
    assert int((out != 9).any(dim=1).sum()) == (m if with_rows else 0)


@pytest.mark.parametrize("room", [3, 80, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_slots_are_found_and_those_without_listed(
    device: torch.device, shape: tuple[Sequence[int], Sequence[int]], room: int | None
) -> None:
    batch = _batch(*shape, dim=5, seed=4)
    table, ids, splits = _there(batch.table, device), *_on(device, batch.ids, batch.splits)
    slots, listing = incoming_rows.find_and_list(table, ids, splits, room)
    found, model = kernels_tiers.find_and_list(batch.table, batch.ids, batch.splits, room)
    same_bits(found, batch.slots())
    same_bits(slots.cpu(), found)
    whole = kernels_tiers.absent_slots(batch.ids, found, batch.splits)
    assert (listing.room, listing.tables) == (model.room, model.tables)
    same_bits(listing.words[: model.tables].cpu(), model.words[: model.tables])
    for k, count in enumerate(model.words[: model.tables].tolist()):
        pairs = _pairs(listing, k, min(count, room or count))
        assert len(set(pairs)) == min(count, room or count)
        assert set(pairs) <= set(_pairs(whole, k, count))


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_found_slots_are_read_as_by_a_lookup(
    device: torch.device, shape: tuple[Sequence[int], Sequence[int]]
) -> None:
    batch = _batch(*shape, dim=5, seed=6)
    table, ids, splits = _there(batch.table, device), *_on(device, batch.ids, batch.splits)
    out, wanted = (torch.full((len(ids), 5), 9.0, device=device) for _ in range(2))
    slots = lookup.lookup(table, ids, wanted, (), None, splits)
    lookup.read(table, slots, out, splits)
    same_bits(out, wanted.cpu())
    assert 0 < int((slots < 0).sum()) < len(ids)
    for k, (start, stop) in enumerate(batch.shares):
        model = torch.full((stop - start, 5), 9.0)
        kernels_table.read(_alone(batch.table, k), slots[start:stop].cpu(), model)
        same_bits(out[start:stop].cpu(), model)


@pytest.mark.parametrize("sample", [16, 64, 1024])
def test_a_sample_of_slots_has_the_times_of_its_twin(device: torch.device, sample: int) -> None:
    batch = _batch((1, 40, 2, 3), (40, 150, 80, 30), every=1)
    batch.used[batch.used == 3] = 1_000_000
    ours, used = _there(batch.table, device), batch.used.to(device)
    seen = set()
    for ranks in ([0, 0, 0, 0], [1, -1, 3, 15], [12, 2, 15, 9], [15, 15, 15, 15]):
        ranks = torch.tensor(ranks)
        got = leave.oldest(ours, used, ranks.to(device), sample=sample)
        same_bits(got, kernels_tiers.oldest(batch.table, batch.used, ranks, sample=sample))
        seen |= set(got.tolist())
    assert {0, 1_000_000, leave.NEVER} <= seen


@pytest.mark.parametrize(("limit", "oldest"), [(9, 3), (4, 6), (9, 1), (9, -1), (-1, 9), (9, 9)])
@pytest.mark.parametrize("lines", [2, 3])
def test_old_rows_are_chosen_as_by_the_twin(
    device: torch.device, limit: int, oldest: int, lines: int
) -> None:
    batch = _batch((1, 40, 2, 3), (40, 150, 80, 30), every=1, lines=lines)
    _prepare(batch)
    old = torch.tensor([oldest, 3, oldest, 0], dtype=torch.int32)
    starts = torch.tensor([0, 20, 400, 440, 500])
    how = {"room": 510, "buckets": 40, "limit": limit, "turn": 1}
    ours = _chosen(batch, device, old, starts, **how)
    state = batch.table, batch.used, batch.changed
    model = kernels_tiers.choose_old(*state, old, starts, **how)
    _same((ours.counts, ours.starts), (model.counts, model.starts))
    assert ours.limit == model.limit == limit
    for part in map(slice, *zip(*pairwise([*starts.tolist(), 510]), strict=True)):
        same_bits(ours.going[part].sort().values, model.going[part].sort().values)
        order, wanted = ours.dirty[part].argsort(), model.dirty[part].argsort()
        same_bits(ours.dirty[part][order], model.dirty[part][wanted])
        listed = model.dirty[part][wanted] >= 0
        for name in ("ids", "times"):
            got, told = (getattr(x, name)[part] for x in (ours, model))
            same_bits(got[order][listed], told[wanted][listed])
    chosen = model.going[model.going >= 0]
    assert bool((batch.used[chosen] <= limit).all())
    assert (len(chosen) > 0) == (limit >= 0)
    assert not set(batch.table.ids(chosen).tolist()) & {EMPTY, ERASED}
    if oldest < 0:  # they need not make room
        assert model.counts[[0, 2], 0].tolist() == [0, 0]


def test_of_nearly_full_buckets_the_oldest_row_is_chosen(device: torch.device) -> None:
    """Of tables that must make room, however young all their rows are."""
    batch = _batch((1, 40, 2, 3), (40, 150, 80, 30), every=1)
    _prepare(batch)
    batch.used[batch.used != leave.NEVER] += 5
    old, starts = torch.ones(4, dtype=torch.int32), torch.tensor([0, 20, 400, 440, 500])
    how = {"room": 510, "buckets": 40, "limit": 20, "turn": 1}
    ours = _chosen(batch, device, old, starts, **how)
    model = kernels_tiers.choose_old(*(batch.table, batch.used, batch.changed, old, starts), **how)
    same_bits(ours.counts, model.counts)
    assert model.counts[[0, 2], 0].tolist() == [1, 1]  # one from each of two full buckets


@pytest.mark.parametrize("turn", [0, 1, 12345])
def test_no_more_are_chosen_than_there_is_room_for(device: torch.device, turn: int) -> None:
    batch = _batch((1, 40, 2, 3), (40, 150, 80, 30), every=1)
    old, starts = torch.tensor([9] * 4, dtype=torch.int32), torch.tensor([0, 5, 5, 12, 100])
    how = {"room": 100, "buckets": 40, "limit": 9, "turn": turn}
    state = batch.table, batch.used, batch.changed
    several = [
        _chosen(batch, device, old, starts, **how),
        kernels_tiers.choose_old(*state, old, starts, **how),
    ]
    many = kernels_tiers.choose_old(*state, old, torch.arange(5) * 200, **{**how, "room": 800})
    for chosen in several:
        same_bits(chosen.counts[:, ::2], many.counts[:, ::2])
        for k, (start, stop) in enumerate(pairwise(starts.tolist())):
            going, dirty = chosen.going[start:stop], chosen.dirty[start:stop]
            count = min(stop - start, int(many.counts[k, 0]))
            slots = set(going[going >= 0].tolist())
            assert len(slots) == int((going >= 0).sum()) == count
            assert slots <= set(many.going[200 * k : 200 * (k + 1)].tolist())
            written = {slot for slot in slots if batch.changed[slot]}
            assert sorted(dirty[dirty >= 0].tolist()) == sorted(written)
            assert int(chosen.counts[k, 1]) == len(written)
            listed = slice(start, start + len(written))
            same_bits(chosen.ids[listed], batch.table.ids(chosen.dirty[listed].cpu()))
            same_bits(chosen.times[listed], batch.table.read(TIMES, chosen.dirty[listed].cpu()))


def _prepare(batch: Batch) -> None:
    """A bucket with one row too few to be full; and times are the lower bits of their words."""
    assert batch.table.spans is not None
    start = (int(batch.table.spans[2, 0]) + 1) * LANES
    there = batch.table.taken()[start : start + LANES].nonzero()[:, 0]
    batch.table.write(KEYS, start + there[LANES - 2 :], ERASED)
    batch.used[start + there[LANES - 2 :]] = leave.NEVER
    taken = batch.table.taken()
    assert [int(taken[at : at + LANES].sum()) for at in (0, start - LANES, start)] == [15, 15, 14]
    there = taken.nonzero()[:, 0]
    words = batch.table.read(TIMES, there) | (torch.arange(len(there)) % 3000 << 48)
    batch.table.write(TIMES, there, words)


def _chosen(
    batch: Batch, device: torch.device, oldest: Tensor, starts: Tensor, **how: int
) -> leave.EvictionCandidates:
    state = _on(device, batch.used, batch.changed, oldest, starts)
    return leave.choose_old(_there(batch.table, device), *state, **how)


@pytest.mark.parametrize("lines", [2, 3])
def test_chosen_rows_are_clean_and_leave_as_by_the_twin(device: torch.device, lines: int) -> None:
    batch = _batch((1, 6, 2), (40, 90, 0), every=1, lines=lines)
    old, starts = torch.tensor([6, 8, 9], dtype=torch.int32), torch.tensor([0, 8, 150, 150])
    how = {"room": 160, "buckets": 6, "limit": 8, "turn": 2}
    ours = _chosen(batch, device, old, starts, **how)
    numbers = {"going", "dirty", "ids", "times", "counts", "starts"}
    model = replace(ours, **{name: getattr(ours, name).cpu() for name in numbers})
    table, used, changed = _there(batch.table, device), batch.used.clone(), batch.changed.clone()
    (flags,) = _on(device, changed)
    leave.clean(ours, flags)
    kernels_tiers.clean(model, changed)
    same_bits(flags, changed)
    assert int((changed != batch.changed).sum()) == int((model.dirty >= 0).sum()) > 5
    slots = model.going[model.going >= 0]
    used[slots[::4]], changed[slots[1::4]] = 9, True  # since
    left = torch.tensor([3, 4, 5])
    when, flags, done = _on(device, used, changed, left)
    for _ in range(2):  # a second time there are none
        leave.take_out(table, ours, when, flags, done)
        kernels_tiers.take_out(batch.table, model, used, changed, left)
        _same((table.index, table.values), (batch.table.index, batch.table.values))
        _same((when, flags, done), (used, changed, left))
    assert int(left.sum()) - 12 == len(slots) - len(slots[::4]) - len(slots[1::4])
    assert int(batch.table.taken().sum()) == int((used != leave.NEVER).sum()) > 0


@pytest.mark.parametrize("with_changes", [True, False])
def test_slots_are_marked_as_by_the_twin(device: torch.device, with_changes: bool) -> None:
    random = torch.Generator().manual_seed(1)
    used = torch.arange(5000, dtype=torch.int32)
    changed = used % 7 == 0
    when, flags = _on(device, used, changed)
    for n, now in ((1200, 2**31 - 2), (0, 3), (1, 4)):
        slots = torch.randint(-2000, 5000, (n,), generator=random, dtype=torch.int32)
        slots[:1] = 0
        leave.mark(slots.to(device), when, flags if with_changes else None, now)
        kernels_tiers.mark(slots, used, changed if with_changes else None, now)
        _same((when, flags), (used, changed))
    assert bool((used == 2**31 - 2).any())
    assert bool((changed != (torch.arange(5000) % 7 == 0)).any()) == with_changes


class Putting:
    """Rows for a batch, and tables that get them from a kernel or from its twin."""

    def __init__(self, batch: Batch, states: int, splits: Tensor) -> None:
        n, tables = len(batch.ids), batch.table.tables
        self.ids, self.splits, self.used = batch.ids, splits, batch.used
        self.table = batch.table
        self.wanted = torch.arange(n) % 7 > 0
        self.rows, self.states = (values(n, width, 5) for width in (batch.table.dim, states))
        self.times, self.came = torch.arange(n) * 2**20, torch.arange(tables) + 1

    def put(
        self, device: torch.device | None, wanted: Tensor | None = None
    ) -> tuple[Arrays, incoming_rows.ArrivalCounts, Tensor]:
        """By the kernel on a device or by the twin: the tables, what is kept of uses, the slots."""
        there = device or CPU
        table, uses = (
            _there(self.table, there),
            incoming_rows.ArrivalCounts(*_on(there, self.used, self.came)),
        )
        wanted = self.wanted if wanted is None else wanted
        given = (self.splits, self.ids, wanted, self.rows, self.states, self.times)
        verb = kernels_tiers.put_rows if device is None else incoming_rows.put_rows
        return table, uses, verb(table, coming_of(*_on(there, *given)), uses, 50).cpu()


def _rows(table: Arrays, used: Tensor, spans: Tensor) -> list[dict[int, tuple[object, int]]]:
    """Rows with states, times and uses by id, table by table."""
    found = []
    for k, (first, _) in enumerate(spans.tolist()):
        own = _alone(replace(table, spans=spans), k)
        ids = own.ids(own.taken().nonzero()[:, 0]).tolist()
        when = used.cpu()[first * LANES :][: len(own.values)][own.taken()].tolist()
        rows = content(own)
        found.append({id_: (rows[id_], n) for id_, n in zip(ids, when, strict=True)})
    return found


@pytest.mark.parametrize(
    ("dim", "states", "shape"),
    [(3, 0, 1), (5, 9, 2), (33, 2, 0), (130, 1, 1), (1, 0, 2), (3, 0, 0)],
)
def test_rows_that_come_are_those_of_the_twin(
    device: torch.device, dim: int, states: int, shape: int
) -> None:
    buckets, shares = SHAPES[shape]
    batch = _batch(buckets, shares, dim, states, seed=dim)
    spans = batch.table.spans
    assert spans is not None
    putting = Putting(batch, states, batch.splits)
    ours, uses, at = putting.put(device)
    model, wanted, places = putting.put(None)
    assert (at.dtype, at.shape) == (places.dtype, places.shape)
    same_bits(uses.came, wanted.came)
    same_bits(uses.used.sort().values, wanted.used.sort().values)
    # Who gets the last places is open, and which of equal ids gets its row. The twin is told.
    again, told, all_come = putting.put(None, at >= 0)
    same_bits(all_come >= 0, at >= 0)
    got, theirs = _rows(ours, uses.used, spans), _rows(model, wanted.used, spans)
    assert got == _rows(again, told.used, spans)
    there = ours.taken().cpu()
    same_bits(ours.values.cpu()[~there], batch.table.values[~there])
    through_all = replace(ours, spans=spans.to(device))
    same_bits(through_all.ids(at[at >= 0].long().to(device)), batch.ids[at >= 0])
    for k, count in enumerate(buckets):
        assert len(got[k]) == len(theirs[k])
        if count > 2:  # and all have room
            assert got[k].keys() == theirs[k].keys()
        elif shares[k]:  # and not all have
            assert len(got[k].keys() - {EMPTY, ERASED}) == count * LANES


def test_ids_that_come_one_by_one_get_the_places_of_the_twin(device: torch.device) -> None:
    batch = _batch((1, 2), (24, 36), 3, 2)
    putting = Putting(batch, 2, batch.splits)
    ours, model = _there(batch.table, device), batch.table
    uses = incoming_rows.ArrivalCounts(*_on(device, putting.used, putting.came))
    wanted = incoming_rows.ArrivalCounts(*_on(CPU, putting.used, putting.came))
    given = (putting.ids, putting.wanted, putting.rows, putting.states, putting.times)
    refused = 0
    for i in range(len(batch.ids)):
        one = [x[i : i + 1] for x in given]
        coming = coming_of(torch.tensor([0, int(i < 24), 1]), *one)
        there = replace(coming, words=coming.words.to(device))
        at = incoming_rows.put_rows(ours, there, uses, i)
        place = kernels_tiers.put_rows(model, coming, wanted, i)
        same_bits(at, place)
        refused += int(place) < 0
    assert 0 < refused < len(batch.ids)
    _same((ours.index, ours.values), (model.index, model.values))
    _same((uses.used, uses.came), (wanted.used, wanted.came))


def test_of_nothing_nothing_comes(device: torch.device) -> None:
    batch, splits = _batch((1, 2), (30, 0)), torch.zeros(3, dtype=torch.int64)
    batch = replace(batch, ids=batch.ids[:0], splits=splits)
    ours = _there(batch.table, device)
    nobody, cuts, used, flags = _on(device, batch.ids, splits, batch.used, batch.changed)
    found = incoming_rows.absent(ours, nobody, cuts, used, 7)
    none = kernels_tiers.absent(batch.table, batch.ids, splits, batch.used.clone(), 7)
    _same((found.words, found.at), (none.words, none.at))
    nowhere, empty = incoming_rows.find_and_list(ours, nobody, cuts, 4)
    lookup.read(ours, nowhere, torch.empty(0, 1, device=device), cuts)
    assert (len(nowhere), int(empty.words.abs().sum())) == (0, 0)
    listing = incoming_rows.absent_slots(nobody, nobody, cuts, 4)
    model = kernels_tiers.absent_slots(batch.ids, batch.ids, splits, 4)
    same_bits(listing.words[:2], model.words[:2])
    putting = Putting(batch, 3, splits)
    same_bits(putting.put(device)[2], putting.put(None)[2])
    old, how = torch.tensor([9, 9], dtype=torch.int32), {"room": 0, "buckets": 2, "limit": 9}
    chosen = _chosen(batch, device, old, splits, **how, turn=0)
    state = batch.table, batch.used, batch.changed
    nothing = kernels_tiers.choose_old(*state, old, splits, **how, turn=0)
    _same((chosen.counts, chosen.going), (nothing.counts, nothing.going))
    left, model_left = _on(device, splits[:2])[0], splits[:2].clone()
    leave.clean(chosen, flags)
    leave.take_out(ours, chosen, used, flags, left)
    kernels_tiers.clean(nothing, batch.changed)
    kernels_tiers.take_out(batch.table, nothing, batch.used, batch.changed, model_left)
    _same((used, flags, left), (batch.used, batch.changed, model_left))
    same_bits(ours.index, batch.table.index)
