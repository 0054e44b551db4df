"""Optimizer steps by id: one per distinct id on the summed gradient, or one per occurrence.

The first pass steps the rows that exist and lists the ids without a row. The second pass inserts
rows for these ids and steps them. So the pass that handles most ids needs few registers, and many
of its programs run at once.

If rows have several segments, both passes also check the gradients of the other segments: a sum
that is not finite in any segment leaves the whole row unchanged. They record the slot of each row,
and one more pass per further segment follows.

`apply_each` steps rows whose slots are already assigned. Each program processes the occurrences of
its ids one after the other and keeps the rows in registers. States go through memory, so the
threads of a program meet at a barrier before they read what another thread wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Bool, Float32, Int64
from .find import claim, live_count, probe
from .first_values import start_rows
from .layout import NO_STEP, Arrays, Grouped, RowSegment
from .lookup import rows_at
from .placement import TIMES, mix_at, word
from .rules import all_finite, count_up, stepped
from .sum_gradients import heads, sum_pieces, summed
from .toolchain import blocks, columns_of, jit, programs_of, tl, writer_tile

BORN = tl.constexpr(2**40)  # added to the slot of a new row between two kernels
KNOWN = tl.constexpr(0)  # pass: rows that exist
NEW = tl.constexpr(1)  # pass: ids that the first pass left
TOLD = tl.constexpr(2)  # pass: further segments of all these rows


@jit
def _known(
    slots: tl.tensor | None,
    index: tl.tensor,
    key: tl.tensor,
    source: tl.tensor,
    head: tl.tensor,
    buckets: tl.tensor,
    LINES: tl.constexpr,
) -> tl.tensor:
    """Returns the slots of groups that have one, from a lookup or the index; -1 for others.

    A slot that another program inserts meanwhile may be missed. `claim` searches again.
    """
    if slots is None:
        return probe(index, mix_at(index, buckets, LINES), key, head, 0, buckets, LINES)
    else:  # noqa: RET505 (Triton wants both arms)
        return tl.load(slots + source, mask=head, other=-1)


@jit
def _leave(left: tl.tensor, i: tl.tensor, leaves: tl.tensor) -> None:
    """Appends positions to the list for the next pass.

    The first entry is the length of the list.
    """
    count = tl.sum(leaves.to(tl.int64), axis=0)
    if count > 0:
        begin = tl.atomic_add(left, count, sem="relaxed")
        place = begin + tl.cumsum(leaves.to(tl.int64), axis=0)
        tl.store(left + place, i, mask=leaves)


@jit
def _placed(
    table: tl.tuple,
    i: tl.tensor,
    group: tl.tuple,
    now: tl.tensor,
    buckets: tl.tensor,
    PASS: tl.constexpr,
    STAMP: tl.constexpr,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the slots of groups that change in this pass (-1 for others), and which are new."""
    index, counts, slots, left = table
    key, source, head, finite, count = group
    wanted = head & finite
    if PASS == KNOWN:
        known = _known(slots, index, key, source, head, buckets, LINES)
        slot, born = tl.where(wanted, known, -1), key != key
        _leave(left, i, wanted & (known < 0))
        count_up(counts, born, born, tl.where(head & ~finite, count, 0))
    else:
        slot, born = claim(index, mix_at(index, buckets, LINES), key, wanted, 0, buckets, LINES)
        count_up(counts, born, wanted & (slot < 0), tl.zeros_like(key))
    if STAMP or PASS == NEW:
        stamped = slot >= 0 if STAMP else born
        tl.store(index + word(slot, TIMES, LINES), tl.zeros_like(slot) + now, mask=stamped)
    return slot, born


@jit
def _step_at(
    i: tl.tensor,
    n: tl.tensor,
    live: tl.tensor,
    batch: tl.tuple,
    table: tl.tuple,
    draw: tl.tuple,
    values: tl.tensor,
    placed: tl.tensor | None,
    buckets: tl.tensor,
    now: tl.tensor,
    pace: tl.tuple,
    numbers: tl.tensor,
    PASS: tl.constexpr,
    RULE: tl.constexpr,
    KIND: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    STATE: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    STAMP: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALL_COLUMNS: tl.constexpr,
) -> None:
    """Performs one pass for the groups that begin at the grouped positions i."""
    ids, order, _, _, _ = batch
    key, source, head = heads(ids, order, i, n, live)
    total, count = summed(batch, i, key, source, head, n, live, START, DIM, WIDTH, COLUMNS)
    if PASS == TOLD:
        told = tl.load(placed + i, mask=i < n, other=-1)
        slot, born = tl.where(told >= BORN, told - BORN, told), told >= BORN
    else:
        finite = all_finite(total)
        if DIM < WIDTH:
            row, _ = summed(batch, i, key, source, head, n, live, 0, WIDTH, WIDTH, ALL_COLUMNS)
            finite = all_finite(row)
        group = (key, source, head, finite, count)
        slot, born = _placed(table, i, group, now, buckets, PASS, STAMP, LINES)
        if placed is not None:
            tl.store(placed + i, tl.where(born, slot + BORN, slot), mask=i < n)
    there = slot >= 0
    rate, at_step = pace
    w = rows_at(values + START, tl.where(born, -1, slot), DIM, STRIDE, COLUMNS)
    if PASS != KNOWN:  # noqa: SIM102 (a compile-time condition must come first)
        if tl.max(born.to(tl.int32), axis=0) > 0:
            seed, a, scale = draw
            first = start_rows(key, seed, a, scale, KIND, START, ROWS, COLUMNS)
            w = tl.where(born[:, None], first, w)
    total = tl.where(there[:, None], total, 0.0)  # the others may not be finite
    rows = (values, slot * STRIDE + STATE, there, born, numbers)
    column, w = (
        tl.arange(0, COLUMNS)[None, :],
        stepped(rows, w, total, rate, at_step, RULE, DIM, COLUMNS),
    )
    place = values + slot[:, None] * STRIDE + START + column
    tl.store(place, w, mask=there[:, None] & (column < DIM))


@jit(do_not_specialize=["n", "buckets", "seed", "now", "at_step"])
def _apply(
    ids: tl.tensor,
    order: tl.tensor | None,
    slots: tl.tensor | None,
    used: tl.tensor | None,
    grads: tl.tensor,
    piece_sums: tl.tensor | None,
    piece_counts: tl.tensor | None,
    placed: tl.tensor | None,
    left: tl.tensor,
    index: tl.tensor,
    values: tl.tensor,
    counts: tl.tensor,
    numbers: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    rate: tl.tensor,
    at_step: tl.tensor,
    seed: tl.tensor,
    a: tl.tensor,
    scale: tl.tensor,
    PASS: tl.constexpr,
    RULE: tl.constexpr,
    KIND: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    STATE: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    STAMP: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALL_COLUMNS: tl.constexpr,
) -> None:
    batch = (ids, order, grads, piece_sums, piece_counts)
    table, draw, live = (index, counts, slots, left), (seed, a, scale), live_count(used, n)
    pace = (rate, at_step)
    block = tl.program_id(0).to(tl.int64) * ROWS
    if PASS == NEW:
        many = tl.load(left)
        while block < many:
            j = block + tl.arange(0, ROWS)
            i = tl.load(left + 1 + j, mask=j < many, other=n)
            _step_at(
                *(i, n, live, batch, table, draw, values, placed, buckets, now, pace, numbers),
                *(PASS, RULE, KIND, START, DIM, STATE, WIDTH, STRIDE, STAMP, LINES),
                *(ROWS, COLUMNS, ALL_COLUMNS),
            )
            block += tl.num_programs(0) * ROWS
    else:
        i = block + tl.arange(0, ROWS)
        _step_at(
            *(i, n, live, batch, table, draw, values, placed, buckets, now, pace, numbers),
            *(PASS, RULE, KIND, START, DIM, STATE, WIDTH, STRIDE, STAMP, LINES),
            *(ROWS, COLUMNS, ALL_COLUMNS),
        )


def apply(
    table: Arrays,
    grouped: Grouped,
    grads: Float32[Tensor, "n dim"],
    counts: Int64[Tensor, "3"],
    parts: Sequence[RowSegment],
    rates: Sequence[float],
    now: int,
    slots: Int64[Tensor, "n"] | None = None,
    used: Int64[Tensor, "1"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
    *,
    stamp: bool = True,
    at_step: int = NO_STEP,
) -> None:
    """Performs one step for each id with its summed gradient. Adds to `counts` like `Applied`.

    An absent id is inserted with its first value. `slots` from a lookup of the same ids save the
    search. A sum that is not finite leaves its row unchanged. `placed`, if given, receives a
    non-negative number where a group begins whose row was written. Without `stamp` only new rows
    get a time; use it if all rows already have this time, because writing it costs a fifth of the
    step.
    """
    n = len(grouped.ids)
    if n == 0:
        return
    pieces = (None, None) if grouped.order is None else sum_pieces(grouped, grads, used)
    if placed is None and len(parts) > 1:
        placed = torch.empty_like(grouped.ids)
    left = grouped.ids.new_empty(n + 1)
    left[:1].zero_()
    steps = list(zip(parts, rates, strict=True))
    passes = [(steps[0], KNOWN), (steps[0], NEW), *((step, TOLD) for step in steps[1:])]
    for (part, rate), which in passes:
        tile = writer_tile(part.dim if part.start else table.dim, 512)
        grid = blocks(n, tile["ROWS"])
        if which is NEW:
            grid = (min(*grid, programs_of(left.device)),)
        _apply[grid](
            *(grouped.ids, grouped.order, slots, used, grads, *pieces, placed, left),
            *(table.index, table.values, counts, part.numbers),
            *(n, table.buckets, now, rate, at_step, signed64(part.first.seed)),
            *(part.first.a, part.first.scale),
            PASS=which.value,
            RULE=part.rule,
            KIND=part.first.kind,
            START=part.start,
            DIM=part.dim,
            STATE=part.state,
            WIDTH=table.dim,
            STRIDE=table.stride,
            STAMP=stamp,
            LINES=table.lines,
            ALL_COLUMNS=columns_of(table.dim),
            **{**tile, "COLUMNS": columns_of(part.dim)},
            enable_fp_fusion=False,
        )


@jit(do_not_specialize=["n", "seed", "now", "at_step"])
def _apply_each(
    ids: tl.tensor,
    order: tl.tensor,
    taking: tl.tensor,
    grads: tl.tensor,
    slots: tl.tensor,
    born: tl.tensor,
    index: tl.tensor,
    values: tl.tensor,
    numbers: tl.tensor,
    n: tl.tensor,
    now: tl.tensor,
    rate: tl.tensor,
    at_step: tl.tensor,
    seed: tl.tensor,
    a: tl.tensor,
    scale: tl.tensor,
    RULE: tl.constexpr,
    KIND: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    STATE: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    key = tl.load(ids + i, mask=i < n, other=0)
    slot = tl.load(slots + i, mask=i < n, other=-1)
    new = tl.load(born + i, mask=i < n, other=0).to(tl.int1)
    there = slot >= 0
    w = rows_at(values + START, tl.where(new, -1, slot), DIM, STRIDE, COLUMNS)
    if tl.max(new.to(tl.int32), axis=0) > 0:
        first = start_rows(key, seed, a, scale, KIND, START, ROWS, COLUMNS)
        w = tl.where(new[:, None], first, w)
    at = i
    more = there
    while tl.max(more.to(tl.int32), axis=0) > 0:
        more = more & (at < n) & (tl.load(ids + at, mask=at < n, other=0) == key)
        takes = more & tl.load(taking + at, mask=more, other=0).to(tl.int1)
        source = tl.load(order + at, mask=takes, other=0)
        here = takes[:, None] & (column < DIM)
        g = tl.load(grads + source[:, None] * WIDTH + START + column, mask=here, other=0.0)
        rows = (values, slot * STRIDE + STATE, takes, new, numbers)
        moved = stepped(rows, w, g, rate, at_step, RULE, DIM, COLUMNS)
        w = tl.where(takes[:, None], moved, w)
        new = new & ~takes
        at += 1
        tl.debug_barrier()
    place = slot[:, None] * STRIDE + START + column
    tl.store(values + place, w, mask=there[:, None] & (column < DIM))
    tl.store(index + word(slot, TIMES, LINES), tl.zeros_like(slot) + now, mask=there)


def apply_each(
    table: Arrays,
    grouped: Grouped,
    taking: Bool[Tensor, "n"],
    grads: Float32[Tensor, "n dim"],
    slots: Int64[Tensor, "n"],
    born: Bool[Tensor, "n"],
    parts: Sequence[RowSegment],
    rates: Sequence[float],
    now: int,
    at_step: int = NO_STEP,
) -> None:
    """Performs one step for every grouped occurrence with `taking`.

    Where a group begins, `slots` holds the slot of its row, or -1; elsewhere it is -1. `born` says
    whether the row is new and still unset. A group with a row must have at least one step.
    """
    n = len(grouped.ids)
    for part, rate in zip(parts, rates, strict=True) if n else ():
        tile = writer_tile(part.dim)
        _apply_each[blocks(n, tile["ROWS"])](
            *(grouped.ids, grouped.order, taking, grads, slots, born),
            *(table.index, table.values, part.numbers, n, now, rate, at_step),
            *(signed64(part.first.seed), part.first.a, part.first.scale),
            RULE=part.rule,
            KIND=part.first.kind,
            START=part.start,
            DIM=part.dim,
            STATE=part.state,
            WIDTH=table.dim,
            STRIDE=table.stride,
            LINES=table.lines,
            **{**tile, "COLUMNS": columns_of(part.dim)},
            enable_fp_fusion=False,
        )
