"""Vectors of one segment added up in their order, where segments lie one after the other."""

from __future__ import annotations

from torch import Tensor

from ..core.shapes import Float, Int64
from .toolchain import jit, tl, wide_tile

# Values of a block: a block takes as long as its longest segment, so small ones waste less. Of 1M
# rows of 64 in 100,000 segments, 0.092 / 0.094 / 0.101 / 0.102 ms with 256 / 512 / 1024 / 2048.
_TILE = 512
AHEAD = tl.constexpr(4)  # vectors of a segment whose loads are under way together


@jit(do_not_specialize=["segments"])
def _sum_segments(
    splits: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    segments: tl.tensor,
    STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    first = tl.load(splits + i, mask=i < segments, other=0)
    end = tl.load(splits + i + 1, mask=i < segments, other=0)
    longest = tl.max(end - first, axis=0)
    total = tl.zeros((ROWS, COLUMNS), SUM)
    done = tl.full((), 0, tl.int64)
    while done < longest:
        for _ in tl.static_range(AHEAD):
            at = first + done
            there = (at < end)[:, None] & (column < DIM)
            row = tl.load(values + at[:, None] * STRIDE + column, mask=there, other=0.0)
            total = tl.where(there, total + row.to(SUM), total)
            done += 1
    here = (i < segments)[:, None] & (column < DIM)
    tl.store(out + i[:, None] * DIM + column, total, mask=here)


def sum_segments(
    splits: Int64[Tensor, "segments+1"],
    values: Float[Tensor, "n width"],
    start: int = 0,
    dim: int | None = None,
) -> Float[Tensor, "segments dim"]:
    """The sum of each segment of `dim` columns from `start` on; halves are summed in float32."""
    width = values.shape[1]
    dim = width - start if dim is None else dim
    segments = len(splits) - 1
    out = values.new_empty(segments, dim)
    if out.numel():
        tile, grid = wide_tile(segments, dim, _TILE)
        _sum_segments[grid](
            *(splits, values[:, start:], out, segments),
            STRIDE=width,
            DIM=dim,
            SUM=tl.float64 if values.element_size() == 8 else tl.float32,
            **tile,
        )
    return out
