"""Thousands of programs that put rows into a full table at once, and readers beside writers.

What must hold whoever comes first: every id asked for has a row afterwards or was told that its
buckets are busy, every row that left was handed out once, nothing is lost or doubled.
"""

from __future__ import annotations

import pytest
import torch

from hedgerow.kernels import evict, find
from hedgerow.kernels.layout import (
    ASSIGNED,
    BUSY,
    EVICTED,
    INSERTED,
    LANES,
    RECLAIMED,
    SCORES,
    Arrays,
)

BUCKETS, DIM = 64, 4


def _ids(n: int, seed: int, device: torch.device) -> torch.Tensor:
    """Different ids."""
    random = torch.Generator(device).manual_seed(seed)
    ids = torch.randint(-(2**63), 2**63 - 1, (n + 10,), device=device, generator=random).unique()
    return ids[torch.randperm(len(ids), device=device, generator=random)][:n]


def _rows(ids: torch.Tensor) -> torch.Tensor:
    """Rows that tell whose they are."""
    return torch.stack([(ids >> s & 0xFFFF).float() for s in (0, 16, 32, 48)], dim=1)


def _held(table: Arrays) -> torch.Tensor:
    """The ids of a table, whose rows must be their own; none stands twice."""
    slots = table.taken().nonzero()[:, 0]
    ids = table.ids(slots)
    assert len(ids.unique()) == len(ids), "an id stands twice"
    assert torch.equal(table.values[slots], _rows(ids)), "a row is not its id's"
    return ids


@pytest.mark.parametrize("n", [200, 1000, 100_000, 2_000_000])
@pytest.mark.parametrize("held", [False, True])
def test_a_full_table_takes_and_hands_out_every_row_once(
    device: torch.device, n: int, held: bool
) -> None:
    table = Arrays.make(BUCKETS, DIM, device, pinned=held)
    pool = _ids(max(3 * n, 4000), n, device)
    before = _held(table)
    for call in range(1, 25):
        ids = pool[torch.randperm(len(pool), device=device)[:n]]
        kept = before[:100]
        if held:
            evict.pin(table, find.find(table, kept))
        scores = torch.randint(1, 100, (n,), device=device)
        placed = evict.insert_and_evict(table, ids, scores, _rows(ids), call=call)
        codes = placed.codes.long().bincount(minlength=8).tolist()
        assert sum(codes[c] for c in (INSERTED, RECLAIMED, ASSIGNED, EVICTED, BUSY)) == n
        found, there = find.find(table, ids), placed.slots >= 0
        assert torch.equal(found[there], placed.slots[there]), "a row that was put is gone"
        assert int(there.sum()) == n - codes[BUSY]
        assert torch.equal(table.read(SCORES, found[there]), scores[there])
        after, gone = _held(table), placed.victims[placed.codes == EVICTED]
        assert len(gone.unique()) == len(gone) == codes[EVICTED]
        assert torch.equal(placed.victim_rows[placed.codes == EVICTED], _rows(gone))
        assert bool(torch.isin(gone, before).all()), "somebody left who was not there"
        left = before[~torch.isin(before, after)]
        assert bool(torch.isin(left, gone).all()), "somebody left unseen"
        assert len(after) == len(before) + codes[INSERTED] + codes[RECLAIMED]
        if held:
            slots = find.find(table, kept)
            assert bool((slots >= 0).all()), "a held row left"
            evict.pin(table, slots, -1)
            assert int(table.pins.abs().sum()) == 0
        before = after
    assert len(before) > 0.9 * BUCKETS * LANES


def test_readers_find_all_that_was_there_before(device: torch.device) -> None:
    """One stream inserts while another looks for what is there and for what never will be."""
    writing, reading = torch.cuda.Stream(device), torch.cuda.Stream(device)
    for seed in range(10):
        table = Arrays.make(4096, 1, device)  # 65,536 slots
        ids = _ids(50_000, seed, device)
        old, new = ids[:10_000], ids[10_000:]
        never = _ids(10_000, seed + 1000, device)
        slots, _ = find.find_or_insert(table, old)
        torch.cuda.synchronize(device)
        with torch.cuda.stream(writing):
            put = [find.find_or_insert(table, part) for part in new.split(500)]
        with torch.cuda.stream(reading):
            seen = [(find.find(table, old), find.find(table, never)) for _ in range(80)]
            late = [find.find(table, new) for _ in range(20)]
        torch.cuda.synchronize(device)
        where = torch.cat([slot for slot, _ in put])
        assert all(bool(born.all()) for _, born in put)
        for found, missed in seen:
            assert torch.equal(found, slots)
            assert bool((missed < 0).all())
        for found in late:  # where it is, or not yet
            assert bool(((found == where) | (found == -1)).all())
        assert torch.equal(find.find(table, new), where)
