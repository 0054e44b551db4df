"""Windows of one flat tensor as rows, and rows added into windows."""

from __future__ import annotations

from torch import Tensor

from ..core.shapes import Float
from .toolchain import jit, tl, wide_tile


@jit
def all_fours(at: tl.tensor, known: tl.tensor) -> tl.tensor:
    """Whether all of these offsets are multiples of 4."""
    return tl.max(tl.where(known, at & 3, 0), axis=0) == 0


@jit
def fours(at: tl.tensor) -> tl.tensor:
    """The same multiples of 4, written so that the compiler sees it."""
    return (at >> 2) * 4


@jit(do_not_specialize=["n", "size"])
def _copy_windows(
    offsets: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    at = tl.load(offsets + i, mask=i < n, other=-1).to(tl.int64)
    inside = (i < n)[:, None] & (column < DIM)
    known = (at >= 0) & (at <= size - DIM)
    there = inside & known[:, None]
    # Offsets that all are multiples of 4 let a thread move 16 bytes at once.
    if all_fours(at, known):
        window = tl.load(values + fours(at)[:, None] + column, mask=there, other=0.0)
        tl.store(out + i[:, None] * DIM + column, window, mask=inside)
    else:
        window = tl.load(values + at[:, None] + column, mask=there, other=0.0)
        tl.store(out + i[:, None] * DIM + column, window, mask=inside)


def copy_windows(offsets: Tensor, values: Float[Tensor, "e"], dim: int) -> Float[Tensor, "n dim"]:
    """`values[o : o + dim]` for each offset; what lies outside is not read."""
    out = values.new_empty(len(offsets), dim)
    if out.numel():
        tile, grid = wide_tile(len(offsets), dim)
        _copy_windows[grid](offsets, values, out, len(offsets), len(values), DIM=dim, **tile)
    return out


@jit(do_not_specialize=["n", "size"])
def _add_windows(
    offsets: tl.tensor,
    rows: tl.tensor,
    scale: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    at = tl.load(offsets + i, mask=i < n, other=-1).to(tl.int64)
    known = (i < n) & (at >= 0) & (at <= size - DIM)
    there = known[:, None] & (column < DIM)
    factor = tl.load(scale)
    row = tl.load(rows + i[:, None] * DIM + column, mask=there, other=0.0).to(factor.dtype)
    if all_fours(at, known):
        target = sums + fours(at)[:, None] + column
        tl.atomic_add(target, row * factor, mask=there, sem="relaxed")
    else:
        tl.atomic_add(sums + at[:, None] + column, row * factor, mask=there, sem="relaxed")


def add_windows(
    offsets: Tensor,
    rows: Float[Tensor, "n dim"],
    scale: Float[Tensor, ""],
    sums: Float[Tensor, "e"],
) -> None:
    """Adds `rows * scale` into the windows at `offsets`, in no fixed order.

    `scale` is on the device and of the type of `sums`.
    """
    n, dim = rows.shape
    if rows.numel():
        tile, grid = wide_tile(n, dim)
        _add_windows[grid](
            *(offsets, rows, scale, sums, n, len(sums)), DIM=dim, **tile, enable_fp_fusion=False
        )
