"""First values of new rows: Philox draws by (seed, id, column), equal to those of the C++ core."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Float32, Int64
from .layout import FirstValues
from .toolchain import blocks, jit, reader_tile, tl


@jit
def _words(
    ids: tl.tensor, block: tl.tensor, seed: tl.tensor, attempt: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Returns the four words of one block of each id's stream of first values."""
    low = (ids & 0xFFFFFFFF).to(tl.uint32)[:, None]
    high = (ids >> 32).to(tl.uint32)[:, None]
    zero = tl.zeros_like(ids[:, None] + block[None, :]).to(tl.uint32)
    tag = zero + (attempt << 4).to(tl.uint32)  # stream 0, step 0
    block = zero + block[None, :].to(tl.uint32)
    return tl.philox(seed.to(tl.int64), zero + low, zero + high, block, tag)


@jit
def _unit(
    ids: tl.tensor,
    seed: tl.tensor,
    START: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns uniform draws in [0, 1). Column c uses word c % 4 of block c // 4."""
    first = tl.full((), 0, tl.int32)
    if START % 4 == 0:
        a, b, c, d = _words(ids, START // 4 + tl.arange(0, COLUMNS // 4), seed, first)
        word = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (ROWS, COLUMNS))
    else:  # one block per column, and one word of it
        column = START + tl.arange(0, COLUMNS)
        a, b, c, d = _words(ids, column // 4, seed, first)
        lane = (column % 4)[None, :]
        word = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return (word >> 8).to(tl.float32) * (1.0 / 16777216.0)


@jit
def _bell(
    ids: tl.tensor,
    seed: tl.tensor,
    attempt: tl.tensor,
    START: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns centered sums of twelve 24-bit integers. They are exact, so order does not matter."""
    total = tl.zeros((ROWS, COLUMNS), tl.uint32)
    for part in tl.static_range(3):
        a, b, c, d = _words(ids, (START + tl.arange(0, COLUMNS)) * 3 + part, seed, attempt)
        total += (a >> 8) + (b >> 8) + (c >> 8) + (d >> 8)
    return (total.to(tl.int32) - 6 * 16777216).to(tl.float32) * (1.0 / 16777216.0)


@jit
def _cut_bell(
    ids: tl.tensor, seed: tl.tensor, START: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> tl.tensor:
    """Returns `_bell`, redrawn up to 15 times while beyond two deviations, then clipped."""
    attempt = tl.full((), 0, tl.int32)
    z = _bell(ids, seed, attempt, START, ROWS, COLUMNS)
    beyond = tl.abs(z) > 2.0
    while (attempt < 15) & (tl.max(beyond.to(tl.int32)) > 0):
        attempt += 1
        z = tl.where(beyond, _bell(ids, seed, attempt, START, ROWS, COLUMNS), z)
        beyond = tl.abs(z) > 2.0
    return tl.minimum(tl.maximum(z, -2.0), 2.0)


@jit
def start_rows(
    ids: tl.tensor,
    seed: tl.tensor,
    a: tl.tensor,
    scale: tl.tensor,
    KIND: tl.constexpr,
    START: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns the first values of the ids' rows from column START on.

    Product and sum round separately.
    """
    start = tl.zeros((ROWS, COLUMNS), tl.float32) + a
    if KIND == "uniform":
        start = a + _unit(ids, seed, START, ROWS, COLUMNS) * scale
    elif KIND == "normal":
        first = tl.full((), 0, tl.int32)
        start = a + scale * _bell(ids, seed, first, START, ROWS, COLUMNS)
    elif KIND == "truncated_normal":
        start = a + scale * _cut_bell(ids, seed, START, ROWS, COLUMNS)
    else:
        tl.static_assert(KIND == "constant")
    return start


@jit
def draw_of(draws: tl.tensor, k: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns seed, `a` and scale of each id's table as columns.

    `draws` has three words per table.
    """
    seed = tl.load(draws + 3 * k)
    a = tl.load(draws + 3 * k + 1).to(tl.int32).to(tl.float32, bitcast=True)
    scale = tl.load(draws + 3 * k + 2).to(tl.int32).to(tl.float32, bitcast=True)
    return seed[:, None], a[:, None], scale[:, None]


@jit(do_not_specialize=["n", "seed"])
def _first_values(
    ids: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    seed: tl.tensor,
    a: tl.tensor,
    scale: tl.tensor,
    KIND: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    key = tl.load(ids + i, mask=i < n, other=0)
    rows = start_rows(key, seed, a, scale, KIND, START, ROWS, COLUMNS)
    tl.store(out + i[:, None] * DIM + column, rows, mask=(i < n)[:, None] & (column < DIM))


def first_values(
    ids: Int64[Tensor, "n"], dim: int, first: FirstValues, start: int = 0
) -> Float32[Tensor, "n dim"]:
    """Returns the first values of the rows of `ids`, from column `start` on."""
    out = torch.empty(len(ids), dim, dtype=torch.float32, device=ids.device)
    if len(ids):
        tile = reader_tile(dim)
        _first_values[blocks(len(ids), tile["ROWS"])](
            *(ids, out, len(ids), signed64(first.seed), first.a, first.scale),
            KIND=first.kind,
            START=start,
            DIM=dim,
            **tile,
            enable_fp_fusion=False,
        )
    return out
