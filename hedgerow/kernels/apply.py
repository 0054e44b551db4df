"""One optimizer step on the row of each id of a batch: sum, find or insert, first value, update.

A row of one segment goes through one kernel. Of several segments, the first kernel also looks at
the gradients of the others (a sum that is not finite anywhere leaves the whole row as it is) and
tells where each row is; one kernel a segment follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Float32, Int64
from .counting import count_up
from .find import live_count
from .find_or_insert import claim
from .finite import all_finite
from .first_values import start_rows
from .layout import Arrays, Grouped, Part
from .lookup import rows_at
from .placement import TIMES, word
from .rules import stepped
from .sum_gradients import heads, sum_pieces, summed
from .toolchain import blocks, columns_of, jit, tl, writer_tile

BORN = tl.constexpr(2**40)  # added to the slot of a new row between two kernels


@jit
def _claimed(
    table: tl.tuple,
    group: tl.tuple,
    now: tl.tensor,
    buckets: tl.tensor,
    STAMP: tl.constexpr,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The slot of each group, -1 where nothing is to be done, and whether it is new."""
    slots, index, counts = table
    head, key, source, finite, count = group
    wanted = head & finite
    if slots is None:
        known = tl.full(key.shape, -1, tl.int64)
    else:
        known = tl.load(slots + source, mask=wanted, other=-1)
    found, born = claim(index, key, wanted & (known < 0), 0, buckets, LINES)
    slot = tl.where(known >= 0, known, found)
    there = slot >= 0
    stamped = there if STAMP else born
    tl.store(index + word(slot, TIMES, LINES), tl.zeros_like(slot) + now, mask=stamped)
    count_up(counts, born, wanted & ~there, tl.where(head & ~finite, count, 0))
    return slot, born


@jit(do_not_specialize=["n", "buckets", "seed", "now"])
def _apply(
    ids: tl.tensor,
    order: tl.tensor | None,
    slots: tl.tensor | None,
    used: tl.tensor | None,
    grads: tl.tensor,
    piece_sums: tl.tensor | None,
    piece_counts: tl.tensor | None,
    placed: tl.tensor | None,
    index: tl.tensor,
    values: tl.tensor,
    counts: tl.tensor,
    numbers: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    rate: tl.tensor,
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
    STAMP: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALL_COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = live_count(used, n)
    key, source, head = heads(ids, order, i, n, live)
    batch = (ids, order, grads, piece_sums, piece_counts)
    total, count = summed(batch, i, key, source, head, n, live, START, DIM, WIDTH, COLUMNS)
    if START == 0:
        finite = all_finite(total)
        if DIM < WIDTH:
            row, _ = summed(batch, i, key, source, head, n, live, 0, WIDTH, WIDTH, ALL_COLUMNS)
            finite = all_finite(row)
        table, group = (slots, index, counts), (head, key, source, finite, count)
        slot, born = _claimed(table, group, now, buckets, STAMP, LINES)
        if placed is not None:
            tl.store(placed + i, tl.where(born, slot + BORN, slot), mask=i < n)
    else:
        told = tl.load(placed + i, mask=i < n, other=-1)
        slot, born = tl.where(told >= BORN, told - BORN, told), told >= BORN
    there = slot >= 0
    w = rows_at(values + START, tl.where(born, -1, slot), DIM, STRIDE, COLUMNS)
    if tl.max(born.to(tl.int32), axis=0) > 0:
        first = start_rows(key, seed, a, scale, KIND, START, ROWS, COLUMNS)
        w = tl.where(born[:, None], first, w)
    total = tl.where(there[:, None], total, 0.0)  # what is left out may not be finite
    rows = (values, slot * STRIDE + STATE, there, born, numbers)
    column, w = tl.arange(0, COLUMNS)[None, :], stepped(rows, w, total, rate, RULE, DIM, COLUMNS)
    place = values + slot[:, None] * STRIDE + START + column
    tl.store(place, w, mask=there[:, None] & (column < DIM))


def apply(
    table: Arrays,
    grouped: Grouped,
    grads: Float32[Tensor, "n dim"],
    counts: Int64[Tensor, "3"],
    parts: Sequence[Part],
    rates: Sequence[float],
    now: int,
    slots: Int64[Tensor, "n"] | None = None,
    used: Int64[Tensor, "1"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
    *,
    stamp: bool = True,
) -> None:
    """One step for each id with its summed gradient; adds to `counts` as `Applied` has them.

    An absent id is born first. `slots` are those of a lookup at the same ids, so that what it found
    is not looked for again. Sums that are not finite leave the table as it is. `placed`, if given,
    is told where each group begins whether its row was written: not below 0. Without `stamp` only
    new rows get a time: for tables whose rows all have it. To write it costs a fifth of the step.
    """
    n = len(grouped.ids)
    if n == 0:
        return
    pieces = (None, None) if grouped.order is None else sum_pieces(grouped, grads, used)
    if placed is None and len(parts) > 1:
        placed = torch.empty_like(grouped.ids)
    for part, rate in zip(parts, rates, strict=True):
        tile = writer_tile(part.dim if part.start else table.dim, 512)
        _apply[blocks(n, tile["ROWS"])](
            *(grouped.ids, grouped.order, slots, used, grads, *pieces, placed),
            *(table.index, table.values, counts, part.numbers),
            *(n, table.buckets, now, rate, signed64(part.first.seed)),
            *(part.first.a, part.first.scale),
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
