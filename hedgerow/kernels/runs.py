"""Groups the occurrences of a batch by the slot of their row, and sums the gradients of each group.

Slots have 32 bits, so sorting them takes half the time of sorting ids. Slots of several tables are
distinct, so one sort serves all tables. The sort is stable: the occurrences of a row stay in input
order.

Sums have the order of `sum_gradients`: pieces of PIECE occurrences, each summed in input order,
then the pieces in order. Runs of at most SHORT occurrences are summed by the kernel that needs
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int32, Int64
from . import layout
from .find import claim, span_of, table_of
from .layout import Arrays
from .output_gradients import OutputGradients, arguments, form_of, gradient_at
from .placement import LANES, candidates, mix_at
from .toolchain import blocks, columns_of, jit, programs_of, several, tl

_TILE = {"ROWS": 128, "num_warps": 4}


@jit(do_not_specialize=["n", "buckets", "now"])
def _seat(
    ids: tl.tensor,
    known: tl.tensor | None,
    used: tl.tensor | None,
    index: tl.tensor,
    spans: tl.tensor | None,
    splits: tl.tensor | None,
    marks: tl.tensor | None,
    changed: tl.tensor | None,
    places: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    LINES: tl.constexpr,
    INSERT: tl.constexpr,
    NUMBERED: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.full((ROWS,), -1, tl.int64)
    if known is not None:
        slot = tl.load(known + i, mask=i < n, other=-1).to(tl.int64)
        if (spans is not None) and (not NUMBERED):
            base, _, _ = span_of((spans, splits), None, i, n, buckets, K, ROOM)
            slot = tl.where(slot >= 0, slot + base * LANES, slot)
    if INSERT:  # noqa: SIM102 (compile-time condition first)
        if tl.min(tl.where(i < n, slot, 0), axis=0) < 0:
            base, count, live = span_of((spans, splits), used, i, n, buckets, K, ROOM)
            todo = live & (slot < 0)
            key = tl.load(ids + i, mask=todo, other=0)
            given, _ = claim(index, mix_at(index, buckets, LINES), key, todo, base, count, LINES)
            # Ids without a free slot are counted later. Equal ids get the same number below -1.
            first, second = candidates(mix_at(index, buckets, LINES), key, base, count)
            number = (first * 31 + second * 17 + (key & 0xFFFF)) & 0x3FFFFFFF
            slot = tl.where(todo, tl.where(given < 0, -2 - number, given), slot)
    tl.store(places + i, slot.to(tl.int32), mask=i < n)
    if marks is not None:
        tl.store(marks + slot, tl.zeros((ROWS,), tl.int32) + now, mask=slot >= 0)
    if changed is not None:
        tl.store(changed + slot, tl.full((ROWS,), 1, tl.int8), mask=slot >= 0)


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """The last use of each slot, and whether its row is dirty. A use sets both.

    `changed` is None for a use that changes nothing.
    """

    used: Int32[Tensor, "slots"]
    changed: Bool[Tensor, "slots"] | None
    now: int


def seat(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    known: Int64[Tensor, "n"] | Int32[Tensor, "n"] | None = None,
    used: Int64[Tensor, "K"] | None = None,
    splits: Int64[Tensor, "K+1"] | None = None,
    *,
    insert: bool = True,
    marks: Marks | None = None,
) -> Int32[Tensor, "n"]:
    """Returns the slot of each key, -1 for unused positions, below -1 if no slot is free.

    Without `insert`, ids whose slot is not `known` get -1. Slots of several tables are numbered
    over all of them. `known` slots of 64 bits are numbered within each table, those of 32 bits over
    all tables; they are not checked. The rows of new ids are not set, and their time stays
    `NEWBORN` until they are. With `marks` the slots are marked as used.
    """
    n = ids.shape[0]
    places = torch.empty_like(ids, dtype=torch.int32)
    when = changed = None
    if marks is not None:
        when = marks.used
        changed = None if marks.changed is None else marks.changed.view(torch.int8)
    if n:
        _seat[blocks(n, _TILE["ROWS"])](
            *(ids, known, used, table.index, table.spans, splits, when, changed, places, n),
            *(table.buckets, 0 if marks is None else marks.now),
            **several(table.tables),
            LINES=table.lines,
            INSERT=insert,
            NUMBERED=known is not None and known.dtype == torch.int32,
            **_TILE,
        )
    return places


PIECE = tl.constexpr(layout.PIECE)
SHORT = tl.constexpr(layout.SHORT)
BLOCK = 1024  # positions per program


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Occurrences sorted by slot: those without a row first, then one run per row."""

    slots: Int32[Tensor, "n"]  # sorted; negative: no row
    order: Int64[Tensor, "n"]  # position in the input
    starts: Int32[Tensor, "n+1"]  # start of each run, then n
    counts: Int32[Tensor, "2"]  # number of runs; number of pieces of long runs
    pieces: Int32[Tensor, "p"]  # start of each piece of runs longer than SHORT, in any order


@jit
def _heads(slots: tl.tensor, i: tl.tensor, n: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Returns the sorted slot at each position, and whether a run begins there."""
    slot = tl.load(slots + i, mask=i < n, other=-1)
    before = tl.load(slots + i - 1, mask=(i > 0) & (i < n), other=-1)
    return slot, (i < n) & ((i == 0) | (slot != before))


@jit
def _alike(
    batch: tl.tuple,
    i: tl.tensor,
    j: tl.tensor,
    asked: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
) -> tl.tensor:
    """Returns whether the keys at two sorted positions are the same id of the same table."""
    ids, splits, order = batch
    one, two = tl.load(order + i, mask=asked, other=0), tl.load(order + j, mask=asked, other=0)
    alike = tl.load(ids + one, mask=asked, other=0) == tl.load(ids + two, mask=asked, other=1)
    if splits is not None:
        alike = alike & (table_of(splits, one, K, ROOM) == table_of(splits, two, K, ROOM))
    return alike


@jit
def _refused(
    batch: tl.tuple,
    slots: tl.tensor,
    slot: tl.tensor,
    i: tl.tensor,
    asked: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
) -> tl.tensor:
    """Returns which positions hold the first occurrence of an id without a free slot.

    Such ids are sorted by a hash. Few share a hash, so the previous occurrence usually decides.
    """
    again = i < 0
    i = i.to(tl.int64)
    at, more = i - 1, asked & (i > 0)
    while tl.max(more.to(tl.int32), axis=0) > 0:
        more = more & (tl.load(slots + at, mask=more, other=-1) == slot)
        again = again | (more & _alike(batch, i, at, more, K, ROOM))
        at -= 1
        more = more & ~again & (at >= 0)
    return asked & ~again


@jit(do_not_specialize=["n"])
def _count_runs(
    slots: tl.tensor,
    order: tl.tensor,
    ids: tl.tensor,
    splits: tl.tensor | None,
    found: tl.tensor,
    made: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    TOTALS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Counts the runs that begin in each block. Adds ids without a free slot to `counts`."""
    if tl.program_id(0) == 0:
        tl.store(made + 1, 0)  # `_write_runs` adds to it
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot, head = _heads(slots, i, n)
    tl.store(found + tl.program_id(0), tl.sum((head & (slot >= 0)).to(tl.int32), axis=0))
    kept_out = (i < n) & (slot < -1)
    if tl.max(kept_out.to(tl.int32), axis=0) > 0:
        batch = (ids, splits, order)
        first = _refused(batch, slots, slot, i, kept_out, K, ROOM)
        if splits is None:
            tl.atomic_add(counts + 1, tl.sum(first.to(tl.int64), axis=0), sem="relaxed")
        else:
            k = table_of(splits, tl.load(order + i, mask=first, other=0), K, ROOM)
            tl.atomic_add(counts + TOTALS * k + 1, first.to(tl.int64), mask=first, sem="relaxed")


@jit
def _write_pieces(
    slots: tl.tensor,
    slot: tl.tensor,
    i: tl.tensor,
    long: tl.tensor,
    pieces: tl.tensor,
    made: tl.tensor,
    n: tl.tensor,
) -> None:
    """Divides long runs that begin at these positions into pieces. The order of pieces may vary."""
    end, above = tl.where(long, i + SHORT + 1, 0), tl.where(long, tl.zeros_like(i) + n, 0)
    while tl.max(above - end, axis=0) > 0:
        middle = (end + above) // 2
        same = tl.load(slots + middle, mask=end < above, other=-1) == slot
        end, above = tl.where(same, middle + 1, end), tl.where(same, above, middle)
    many = tl.where(long, (end - i + PIECE - 1) // PIECE, 0)
    at = tl.cumsum(many, axis=0) - many + tl.atomic_add(made, tl.sum(many, axis=0), sem="relaxed")
    k = tl.full((), 0, tl.int32)
    while k < tl.max(many, axis=0):
        tl.store(pieces + at + k, i + k * PIECE, mask=k < many)
        k += 1


@jit(do_not_specialize=["n"])
def _write_runs(
    slots: tl.tensor,
    found: tl.tensor,
    starts: tl.tensor,
    pieces: tl.tensor,
    made: tl.tensor,
    n: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    before = tl.zeros((1024,), tl.int32)
    k = tl.arange(0, 1024)
    while tl.min(k, axis=0) < block:
        before += tl.load(found + k, mask=k < block, other=0)
        k += 1024
    rank = tl.sum(before, axis=0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    slot, head = _heads(slots, i, n)
    head = head & (slot >= 0)
    at = rank + tl.cumsum(head.to(tl.int32), axis=0) - 1
    tl.store(starts + at, i, mask=head)
    if block == tl.num_programs(0) - 1:
        total = rank + tl.sum(head.to(tl.int32), axis=0)
        tl.store(made, total)
        tl.store(starts + total, n.to(tl.int32))
    later = tl.load(slots + i + SHORT, mask=head & (i + SHORT < n), other=-1)
    long = head & (slot == later)
    if tl.max(long.to(tl.int32), axis=0) > 0:
        _write_pieces(slots, slot, i, long, pieces, made + 1, n)


def runs(
    table: Arrays,
    places: Int32[Tensor, "n"],
    ids: Int64[Tensor, "n"],
    counts: Int64[Tensor, "3"] | Int64[Tensor, "K 3"],
    splits: Int64[Tensor, "K+1"] | None = None,
) -> Runs:
    """Returns the runs of `places`: slots, -1 for unused positions, below -1 for refused ids.

    Equal refused ids of a table must have the same number. The number of distinct refused ids is
    added to `counts` like `Applied`.
    """
    n = places.shape[0]
    slots, order = torch.sort(places, stable=True)
    starts, made = places.new_empty(n + 1), places.new_empty(2)
    pieces = places.new_empty(n // layout.SHORT + n // layout.PIECE + 1)
    if n == 0:
        made.zero_()
    else:
        grid = blocks(n, BLOCK)
        found = places.new_empty(grid[0])
        _count_runs[grid](
            *(slots, order, ids, splits, found, made, counts, n),
            **several(table.tables),
            TOTALS=counts.stride(0),
            BLOCK=BLOCK,
        )
        _write_runs[grid](slots, found, starts, pieces, made, n, BLOCK=BLOCK)
    return Runs(slots, order, starts, made, pieces)


AHEAD = tl.constexpr(16)  # occurrences whose loads are in flight together


@jit
def _piece(
    order: tl.tensor,
    grads: tl.tuple,
    begin: tl.tensor,
    end: tl.tensor,
    DIM: tl.constexpr,
    FORM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns the sum of the occurrences from `begin` to `end`, in order."""
    column = tl.arange(0, COLUMNS)
    there = column < DIM
    total = gradient_at(grads, tl.load(order + begin), begin < end, column, there, DIM, FORM)
    at = begin + 1
    while at < end:
        for _ in tl.static_range(AHEAD):  # pyright: ignore[reportGeneralTypeIssues]
            more = at < end
            source = tl.load(order + at, mask=more, other=0)
            grad = gradient_at(grads, source, more, column, there, DIM, FORM)
            total = tl.where(more, total + grad, total)
            at += 1
    return total


@jit(do_not_specialize=["n", "firsts", "room"])
def _sum_long_runs(
    slots: tl.tensor,
    order: tl.tensor,
    pieces: tl.tensor,
    made: tl.tensor,
    base: tl.tensor,
    places: tl.tensor | None,
    rows: tl.tensor | None,
    divisors: tl.tensor | None,
    weights: tl.tensor | None,
    largest: tl.tensor | None,
    room: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    firsts: tl.tensor,
    DIM: tl.constexpr,
    FORM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    column = tl.arange(0, COLUMNS)
    grads = (base, places, rows, divisors, weights, largest, room)
    program = tl.program_id(0)
    many = tl.load(made + 1)
    while program < many:
        begin = tl.load(pieces + program)
        inside = begin + tl.arange(0, PIECE)
        slot = tl.load(slots + begin)
        same = tl.load(slots + inside, mask=inside < n, other=-1) == slot
        # All sources are read at once, so that they are cached when they are used one by one.
        sources = tl.load(order + inside, mask=same, other=0)
        end = begin + tl.sum((same & (sources >= 0)).to(tl.int32), axis=0)
        total = _piece(order, grads, begin, end, DIM, FORM, COLUMNS)
        later = tl.load(slots + begin - 1, mask=begin > 0, other=-1) == slot
        place = tl.where(later, firsts + begin // PIECE, begin // SHORT).to(tl.int64)
        tl.store(sums + place * DIM + column, total, mask=column < DIM)
        program += tl.num_programs(0)


def sum_long_runs(
    runs: Runs, grads: Float32[Tensor, "n dim"] | OutputGradients
) -> tuple[Float32[Tensor, "pieces dim"], int]:
    """Returns the sums of all pieces of long runs, and the number of entries for first pieces.

    The first piece of a run is at entry begin // SHORT of the run. Another piece is at its own
    begin // PIECE behind these entries. No two pieces share an entry; other entries are undefined.
    """
    n, dim = grads.shape
    firsts, laters = -(-n // layout.SHORT), -(-n // layout.PIECE)
    sums = torch.empty(firsts + laters, dim, dtype=torch.float32, device=grads.device)
    if n:
        columns = columns_of(dim)
        _sum_long_runs[(min(len(runs.pieces), programs_of(grads.device)),)](
            *(runs.slots, runs.order, runs.pieces, runs.counts),
            *(*arguments(grads), sums, n, firsts),
            DIM=dim,
            FORM=form_of(grads),
            COLUMNS=columns,
            num_warps=max(1, min(4, columns // 128)),
            enable_fp_fusion=False,
        )
    return sums, firsts
