"""Kernels that assign rows, add to rows and erase rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int64
from . import layout
from .find import claim, live_count, probe
from .layout import Arrays, Grouped
from .placement import EMPTY, ERASED, TIMES, mix_at, own_place, word
from .rules import all_finite, count_up
from .sum_gradients import follows, heads
from .toolchain import blocks, jit, tl, writer_tile


@jit
def _winner(
    ids: tl.tensor,
    order: tl.tensor,
    usable: tl.tensor,
    i: tl.tensor,
    key: tl.tensor,
    source: tl.tensor,
    head: tl.tensor,
    n: tl.tensor,
    live: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns each group's last usable source (-1 if none), and its number of unusable rows."""
    good = tl.load(usable + source, mask=head, other=0).to(tl.int1)
    winner = tl.where(head & good, source, -1)
    bad = (head & ~good).to(tl.int64)
    more = head
    at = i + 1
    while tl.max(more.to(tl.int32), axis=0) > 0:
        source, more = follows(ids, order, at, key, head, n, live)
        good = tl.load(usable + source, mask=more, other=0).to(tl.int1)
        winner = tl.where(more & good, source, winner)
        bad += (more & ~good).to(tl.int64)
        at += 1
    return winner, bad


@jit(do_not_specialize=["n", "buckets", "now"])
def _assign(
    ids: tl.tensor,
    order: tl.tensor,
    used: tl.tensor | None,
    rows: tl.tensor,
    usable: tl.tensor,
    starts: tl.tensor,
    states: tl.tensor | None,
    stamps: tl.tensor | None,
    placed: tl.tensor | None,
    index: tl.tensor,
    values: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    DIM: tl.constexpr,
    STATES: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = live_count(used, n)
    key, source, head = heads(ids, order, i, n, live)
    winner, bad = _winner(ids, order, usable, i, key, source, head, n, live)
    slot, born = claim(index, mix_at(index, buckets, LINES), key, winner >= 0, 0, buckets, LINES)
    column = tl.arange(0, COLUMNS)[None, :]
    there = slot >= 0
    here = there[:, None] & (column < DIM)
    given = tl.load(rows + winner[:, None] * DIM + column, mask=here, other=0.0)
    tl.store(values + slot[:, None] * STRIDE + column, given, mask=here)
    for part in range((STATES + COLUMNS - 1) // COLUMNS):
        state = part * COLUMNS + column
        if states is None:
            fresh = born[:, None] & (state < STATES)
            start = tl.load(starts + state, mask=state < STATES, other=0.0)
            tl.store(values + slot[:, None] * STRIDE + DIM + state, start, mask=fresh)
        else:
            whole = there[:, None] & (state < STATES)
            own = tl.load(states + winner[:, None] * STATES + state, mask=whole, other=0.0)
            tl.store(values + slot[:, None] * STRIDE + DIM + state, own, mask=whole)
    if stamps is None:
        time = tl.zeros_like(slot) + now
    else:
        time = tl.load(stamps + winner, mask=there, other=0)
    tl.store(index + word(slot, TIMES, LINES), time, mask=there)
    count_up(counts, born, (winner >= 0) & ~there, bad)
    if placed is not None:
        tl.store(placed + i, slot, mask=i < n)


def assign(
    table: Arrays,
    grouped: Grouped,
    rows: Float32[Tensor, "n dim"],
    usable: Bool[Tensor, "n"],
    starts: Float32[Tensor, "states"],
    counts: Int64[Tensor, "3"],
    now: int,
    used: Int64[Tensor, "1"] | None = None,
    states: Float32[Tensor, "n states"] | None = None,
    stamps: Int64[Tensor, "n"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
) -> None:
    """Assigns to each id its last `usable` row. Adds to `counts` like `Applied`.

    States of new rows start from `starts`; with `states` all rows get the given states. Times are
    `now` or `stamps`. `placed`, if given, receives the slot of each group's row where the group
    begins, -1 if none was written.
    """
    n = len(grouped.ids)
    if n == 0:
        return
    tile = writer_tile(table.dim)
    _assign[blocks(n, tile["ROWS"])](
        *(grouped.ids, grouped.order, used, rows, usable, starts, states, stamps, placed),
        *(table.index, table.values, counts, n, table.buckets, now),
        DIM=table.dim,
        STATES=len(starts),
        STRIDE=table.stride,
        LINES=table.lines,
        **tile,
    )


@jit
def _added(
    batch: tl.tuple,
    total: tl.tensor,
    i: tl.tensor,
    key: tl.tensor,
    source: tl.tensor,
    head: tl.tensor,
    n: tl.tensor,
    live: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns `total` plus the usable rows of each group, and the usable and unusable counts."""
    ids, order, rows, usable = batch
    column = tl.arange(0, COLUMNS)[None, :]
    good = tl.load(usable + source, mask=head, other=0).to(tl.int1)
    given = tl.load(
        rows + source[:, None] * DIM + column, mask=good[:, None] & (column < DIM), other=0.0
    )
    total = tl.where(good[:, None], total + given, total)
    added, left_out = good.to(tl.int64), (head & ~good).to(tl.int64)
    more = head
    at = i + 1
    while tl.max(more.to(tl.int32), axis=0) > 0:
        source, more = follows(ids, order, at, key, head, n, live)
        good = tl.load(usable + source, mask=more, other=0).to(tl.int1)
        here = good[:, None] & (column < DIM)
        given = tl.load(rows + source[:, None] * DIM + column, mask=here, other=0.0)
        total = tl.where(good[:, None], total + given, total)
        added += good.to(tl.int64)
        left_out += (more & ~good).to(tl.int64)
        at += 1
    return total, added, left_out


@jit(do_not_specialize=["n", "buckets", "now"])
def _assign_add(
    ids: tl.tensor,
    order: tl.tensor,
    used: tl.tensor | None,
    rows: tl.tensor,
    usable: tl.tensor,
    begun: tl.tensor,
    starts: tl.tensor,
    placed: tl.tensor | None,
    index: tl.tensor,
    values: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    DIM: tl.constexpr,
    STATES: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = live_count(used, n)
    key, source, head = heads(ids, order, i, n, live)
    column = tl.arange(0, COLUMNS)[None, :]
    inside = column < DIM
    total = tl.load(begun + i[:, None] * DIM + column, mask=head[:, None] & inside, other=0.0)
    batch = (ids, order, rows, usable)
    total, added, left_out = _added(batch, total, i, key, source, head, n, live, DIM, COLUMNS)
    good = head & (added > 0) & all_finite(total)
    slot, born = claim(index, mix_at(index, buckets, LINES), key, good, 0, buckets, LINES)
    there = slot >= 0
    tl.store(values + slot[:, None] * STRIDE + column, total, mask=there[:, None] & inside)
    for part in range((STATES + COLUMNS - 1) // COLUMNS):
        state = part * COLUMNS + column
        start = tl.load(starts + state, mask=state < STATES, other=0.0)
        fresh = born[:, None] & (state < STATES)
        tl.store(values + slot[:, None] * STRIDE + DIM + state, start, mask=fresh)
    tl.store(index + word(slot, TIMES, LINES), tl.zeros_like(slot) + now, mask=there)
    count_up(counts, born, good & ~there, tl.where(good, left_out, added + left_out))
    if placed is not None:
        tl.store(placed + i, slot, mask=i < n)


def assign_add(
    table: Arrays,
    grouped: Grouped,
    rows: Float32[Tensor, "n dim"],
    usable: Bool[Tensor, "n"],
    begun: Float32[Tensor, "n dim"],
    starts: Float32[Tensor, "states"],
    counts: Int64[Tensor, "3"],
    now: int,
    used: Int64[Tensor, "1"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
) -> None:
    """Adds the `usable` rows of each id to its row. Adds to `counts` like `Applied`.

    `begun` holds the present rows of the grouped ids, or the first values of absent ones. States of
    new rows start from `starts`. A sum that is not finite leaves the row unchanged, and all its
    parts count as dropped. `placed` works as in `assign`.
    """
    n = len(grouped.ids)
    if n == 0:
        return
    tile = writer_tile(table.dim)
    _assign_add[blocks(n, tile["ROWS"])](
        *(grouped.ids, grouped.order, used, rows, usable, begun, starts, placed),
        *(table.index, table.values, counts, n, table.buckets, now),
        DIM=table.dim,
        STATES=len(starts),
        STRIDE=table.stride,
        LINES=table.lines,
        **tile,
    )


NEWBORN = tl.constexpr(layout.NEWBORN)


@jit(do_not_specialize=["n", "buckets"])
def _erase(
    ids: tl.tensor,
    order: tl.tensor | None,
    used: tl.tensor | None,
    index: tl.tensor,
    erased: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    key, source, head = heads(ids, order, i, n, live_count(used, n))
    slot = probe(index, mix_at(index, buckets, LINES), key, head, 0, buckets, LINES)
    there = slot >= 0
    special, _ = own_place(key, 0, buckets)
    gone = tl.where(special, EMPTY, ERASED)
    tl.store(index + word(slot, 0, LINES), gone, mask=there)
    for line in tl.static_range(1, LINES):  # pyright: ignore[reportGeneralTypeIssues]
        tl.store(index + word(slot, line, LINES), tl.zeros_like(slot) + NEWBORN, mask=there)
    tl.store(erased + source, there, mask=there)


def erase(
    table: Arrays, grouped: Grouped, used: Int64[Tensor, "1"] | None = None
) -> Bool[Tensor, "n"]:
    """Erases the rows of these ids. Returns, for the first of equal ids, whether it had a row."""
    n = len(grouped.ids)
    erased = torch.zeros_like(grouped.ids, dtype=torch.bool)
    if n:
        _erase[blocks(n, 32)](
            *(grouped.ids, grouped.order, used, table.index, erased, n, table.buckets),
            LINES=table.lines,
            ROWS=32,
        )
    return erased
