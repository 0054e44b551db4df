"""Sets rows, or whole rows with states and times; of equal ids the last usable row wins."""

from __future__ import annotations

from torch import Tensor

from ..core.shapes import Bool, Float32, Int64
from .counting import count_up
from .find import live_count
from .find_or_insert import claim
from .layout import Arrays, Grouped
from .placement import TIMES, mix_at, word
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
    """Where the last usable row of each group came from, -1 = none; and how many were not."""
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
    """Puts each id's last row that is `usable`; adds to `counts` as `Applied` has them.

    The states of new rows are `starts`; with `states` all rows get theirs. Their times are `now`,
    or `stamps`. `placed`, if given, is told where each group begins the slot of its row, -1 where
    none was written.
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
