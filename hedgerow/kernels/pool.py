"""Pools bags directly from the rows of a table by slot, without storing the rows in between."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Float32, Int64
from .first_values import start_rows
from .layout import Arrays, FirstValues, RowSegment
from .lookup import rows_at
from .toolchain import blocks, columns_of, jit, tl

POOLINGS = ("sum", "mean", "sqrtn")
_TILE = 512  # as measured for `segments`


@jit(do_not_specialize=["bags", "seed"])
def _pool(
    ids: tl.tensor,
    slots: tl.tensor,
    splits: tl.tensor,
    weights: tl.tensor | None,
    values: tl.tensor,
    out: tl.tensor,
    bags: tl.tensor,
    seed: tl.tensor,
    a: tl.tensor,
    scale: tl.tensor,
    KIND: tl.constexpr,
    POOLING: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    first = tl.load(splits + i, mask=i < bags, other=0)
    end = tl.load(splits + i + 1, mask=i < bags, other=0)
    longest = tl.max(end - first, axis=0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    done = tl.full((), 0, tl.int64)
    while done < longest:
        at = first + done
        more = at < end
        slot = tl.load(slots + at, mask=more, other=-1)
        rows = rows_at(values + START, slot, DIM, STRIDE, COLUMNS)
        if KIND != "zeros":
            absent = more & (slot < 0)
            if tl.max(absent.to(tl.int32), axis=0) > 0:
                key = tl.load(ids + at, mask=absent, other=0)
                born = start_rows(key, seed, a, scale, KIND, START, ROWS, COLUMNS)
                rows = tl.where(absent[:, None], born, rows)
        if weights is not None:
            rows = rows * tl.load(weights + at, mask=more, other=0.0)[:, None]
        total = tl.where(more[:, None], total + rows, total)
        done += 1
    count = tl.maximum(end - first, 1).to(tl.float32)
    if POOLING == "mean":
        total = tl.div_rn(total, tl.zeros_like(total) + count[:, None])
    elif POOLING == "sqrtn":
        total = tl.div_rn(total, tl.zeros_like(total) + tl.sqrt_rn(count)[:, None])
    else:
        tl.static_assert(POOLING == "sum")
    here = (i < bags)[:, None] & (column < DIM)
    tl.store(out + i[:, None] * WIDTH + START + column, total, mask=here)


def pool(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    slots: Int64[Tensor, "n"],
    splits: Int64[Tensor, "bags+1"],
    pooling: str,
    weights: Float32[Tensor, "n"] | None = None,
    parts: Sequence[RowSegment] = (),
) -> Float32[Tensor, "bags dim"]:
    """Returns one pooled vector per bag, its rows added in order; zeros for an empty bag.

    Absent ids (slot -1) count as zeros, or with `parts` as their first values.
    """
    bags = len(splits) - 1
    out = torch.empty(bags, table.dim, dtype=torch.float32, device=ids.device)
    zeros = FirstValues("zeros", 0.0, 0.0, 0)
    columns = [(part.start, part.dim, part.first) for part in parts] or [(0, table.dim, zeros)]
    for start, dim, draw in columns if bags else ():
        columns = columns_of(dim)  # the full width, as first values are drawn
        rows = max(1, min(32, _TILE // columns))
        _pool[blocks(bags, rows)](
            *(ids, slots, splits, weights, table.values, out, bags),
            *(signed64(draw.seed), draw.a, draw.scale),
            KIND=draw.kind,
            POOLING=pooling,
            START=start,
            DIM=dim,
            WIDTH=table.dim,
            STRIDE=table.stride,
            ROWS=rows,
            COLUMNS=columns,
            enable_fp_fusion=False,
        )
    return out
