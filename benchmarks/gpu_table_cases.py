"""The verbs of one table on a GPU: 1,048,576 different ids a call, rows of 64 floats."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hedgerow.kernels import apply, evict, find, lookup
from hedgerow.kernels.layout import LANES, Arrays, FirstValues, Grouped, RowSegment

from .gpu_timer import Case

DIM = 64
_LINE, _ROW, _ID = 128, 4 * DIM, 8
LOADS = (0.5, 0.75, 0.95)
HITS = 0.6  # of the ids where some are new


def _sizes(quick: bool) -> tuple[int, int]:
    """Slots of the table, ids a call."""
    return (1 << 8, 1 << 6) if quick else (1 << 26, 1 << 20)


def _random_ids(n: int, device: torch.device) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (n,), device=device)


def filled(table: Arrays, load: float) -> Tensor:
    """Puts random ids into a table until it is `load` full, or takes no more; the ids it has."""
    device, slots = table.index.device, table.buckets * LANES
    have: list[Tensor] = []
    missing, tries = int(load * slots), 0
    while missing > 0 and tries < 40:
        for part in _random_ids(missing, device).split(1 << 22):
            placed, new = find.find_or_insert(table, part)
            have.append(part[new])
            table.write(1, placed[new], 0)
        missing, tries = int(load * slots) - sum(map(len, have)), tries + 1
    return torch.cat(have)


class _Batches:
    """Ids of a call, other ones each time: a share of known ones, the rest new."""

    def __init__(self, known: Tensor, n: int, hits: float) -> None:
        old = int(n * hits)
        self._sets = [self._one(known, n, old) for _ in range(6)]
        self._turn = 0

    @staticmethod
    def _one(known: Tensor, n: int, old: int) -> Tensor:
        device = known.device
        ids = torch.cat(
            [
                known[torch.randperm(len(known), device=device)[:old]],
                _random_ids(n - old, device),
            ]
        )
        return ids[torch.randperm(n, device=device)]

    def next(self) -> Tensor:
        """The ids of the next call."""
        self._turn += 1
        return self._sets[self._turn % len(self._sets)]


class _Snapshot:
    """Puts the keys of a table back after a call that changed them."""

    def __init__(self, table: Arrays) -> None:
        self._table, self._index = table, table.index.clone()

    def restore(self) -> None:
        """Copies the index back."""
        self._table.index.copy_(self._index)


def _reading(table: Arrays, known: Tensor, n: int, load: float) -> Iterator[Case]:
    out = torch.empty(n, DIM, device=known.device)
    for hits in (1.0, HITS):
        batches = _Batches(known, n, hits)
        name = f"load {load}, {hits:.0%} hits"
        probe = n * (_ID + _LINE + _ID)
        yield Case(
            f"find and gather, {name}",
            probe + int(n * hits) * _ROW + n * _ROW,
            lambda b=batches: lookup.lookup(table, b.next(), out),
            items=n,
        )
        yield Case(f"find, {name}", probe, lambda b=batches: find.find(table, b.next()), items=n)


def _inserting(table: Arrays, known: Tensor, n: int, load: float) -> Iterator[Case]:
    batches, snapshot = _Batches(known, n, HITS), _Snapshot(table)
    rows = torch.randn(n, DIM, device=known.device)
    new = n - int(n * HITS)
    probe = n * (_ID + _LINE + _ID) + new * 2 * 32  # a sector read and written by the swap
    yield Case(
        f"find or insert with rows, load {load}, {HITS:.0%} hits",
        probe + n * 2 * _ROW,
        lambda: find.exchange(table, batches.next(), rows),
        items=n,
        restore=snapshot.restore,
    )
    yield Case(
        f"find or insert, load {load}, {HITS:.0%} hits",
        probe,
        lambda: find.find_or_insert(table, batches.next()),
        items=n,
        restore=snapshot.restore,
    )
    yield from _evicting(table, batches, rows, snapshot, f"load {load}, {HITS:.0%} hits", HITS)


def _evicting(
    table: Arrays,
    batches: _Batches,
    rows: Tensor,
    snapshot: _Snapshot,
    name: str,
    hits: float,
) -> Iterator[Case]:
    n = len(rows)
    scores, calls = torch.ones(n, dtype=torch.int64, device=rows.device), [0]

    def call() -> object:
        calls[0] = calls[0] % 30_000 + 1
        return evict.insert_and_evict(table, batches.next(), scores, rows, call=calls[0])

    full = (table.taken().sum() / (table.buckets * LANES)) > 0.99
    gone = int(n * (1 - hits)) if bool(full) else 0
    moved = n * (3 * _ID + _LINE + 2 * _ID + 2 * _ROW + 2 * 32)
    moved += gone * (3 * _LINE + 2 * _ROW + 2 * 32)
    yield Case(
        f"insert and evict with rows, {name}", moved, call, items=n, restore=snapshot.restore
    )


def _updating(table: Arrays, known: Tensor, n: int) -> Iterator[Case]:
    """Find and one step at once of ids that differ: no sort. Rows without times, and with them."""
    device = known.device
    first = FirstValues("uniform", -0.1, 0.1, 7)
    part = RowSegment(
        0, DIM, DIM, first, "adagrad", RowSegment.numbers_of([0.0, 1e-8], [0.1], device)
    )
    batches, grads = _Batches(known, n, 1.0), torch.randn(n, DIM, device=device)
    counts, clock = torch.zeros(3, dtype=torch.int64, device=device), [1]

    def call(*, stamp: bool) -> None:
        clock[0] += 1
        ids = Grouped(batches.next(), None)
        apply.apply(table, ids, grads, counts, [part], [0.1], clock[0], stamp=stamp)

    moved = n * (_ID + _LINE + 5 * _ROW)
    yield Case("find and Adagrad", moved, lambda: call(stamp=False), items=n)
    yield Case("find and Adagrad, with times", moved + n * 64, lambda: call(stamp=True), items=n)


def table_cases(device: torch.device, quick: bool) -> Iterator[Case]:
    """All cases, table after table."""
    slots, n = _sizes(quick)
    table, known = Arrays.make(1, DIM, device), torch.empty(0, dtype=torch.int64, device=device)
    for load in LOADS:
        table = Arrays.make(slots // LANES, DIM, device)
        known = filled(table, load)
        yield from _reading(table, known, n, load)
        yield from _inserting(table, known, n, load)
    known = torch.cat([known, filled(table, 1.0)])
    name, snapshot = f"load {len(known) / slots:.3f}", _Snapshot(table)
    rows = torch.randn(n, DIM, device=device)
    for hits in (HITS, 0.0):
        batches = _Batches(known, n, hits)
        yield from _evicting(table, batches, rows, snapshot, f"{name}, {hits:.0%} hits", hits)
    yield from _reading(table, known, n, round(len(known) / slots, 3))
    del table, snapshot, known, batches
    table = Arrays.make(slots // LANES, DIM, device, DIM)
    yield from _updating(table, filled(table, 0.5), n)
