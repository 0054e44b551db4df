"""Groups the occurrences of a batch by the slots of their rows, without telling the host how many.

Slots have 32 bits, so sorting them takes half the time of sorting ids, and the slots of several
tables do not meet: one sort serves all. The sort is stable, so the occurrences of a row stand in
input order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Int32, Int64
from . import layout
from .find import table_of
from .layout import Arrays
from .toolchain import blocks, jit, several, tl

PIECE = tl.constexpr(layout.PIECE)
SHORT = tl.constexpr(layout.SHORT)
BLOCK = 1024  # positions that one program looks at


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Occurrences sorted by slot: those without a row first, then one run of them a row."""

    slots: Int32[Tensor, "n"]  # sorted; negative: no row
    order: Int64[Tensor, "n"]  # where each came from
    starts: Int32[Tensor, "n+1"]  # where each run begins; behind the last, n
    counts: Int32[Tensor, "2"]  # runs; pieces of long ones
    pieces: Int32[Tensor, "p"]  # where each piece of a run longer than SHORT begins, in any order


@jit
def _heads(slots: tl.tensor, i: tl.tensor, n: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The sorted slot at each position, and whether a run begins there, of a row or of none."""
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
    """Whether the keys at two sorted positions are one id of one table."""
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
    """Which positions have the first occurrence of an id that found no room.

    Such ids are sorted by a hash. Few share one, so the occurrence before mostly tells.
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
    """How many runs begin in each block; adds the ids without room to `counts`."""
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
    """Cuts long runs that begin at these positions into pieces; which come first may differ."""
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
    """The runs of `places`: slots, -1 for room, other negative numbers for ids without room.

    Of the latter, equal ids of a table have the same number. How many such ids there are is added
    to `counts` as `Applied` has them.
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
