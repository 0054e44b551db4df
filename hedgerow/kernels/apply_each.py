"""One optimizer step for every occurrence of an id, in input order, as the original has it.

The rows have been placed: a first pass said which groups need one. Each program takes the
occurrences of its ids one after the other and keeps the rows themselves; the states go through
memory, where threads see what others of their program wrote once all have come to a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Bool, Float32, Int64
from .first_values import start_rows
from .layout import NO_STEP, Arrays, Grouped, Part
from .lookup import rows_at
from .placement import TIMES, word
from .rules import stepped
from .toolchain import blocks, columns_of, jit, tl, writer_tile


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
    parts: Sequence[Part],
    rates: Sequence[float],
    now: int,
    at_step: int = NO_STEP,
) -> None:
    """A step for every grouped occurrence that is `taking`.

    Where a group begins, `slots` says where its row is (-1: nowhere, and elsewhere) and `born`
    whether it is new: such a row has nothing in it yet. A group with a row takes at least one step.
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
