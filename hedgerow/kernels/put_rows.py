"""Puts whole rows into slots that were taken for them."""

from __future__ import annotations

from torch import Tensor

from ..core.shapes import Float32, Int32, Int64
from .layout import Arrays
from .placement import TIMES, word
from .toolchain import blocks, columns_of, jit, reader_tile, tl


@jit(do_not_specialize=["n"])
def _put_rows(
    slots: tl.tensor,
    rows: tl.tensor,
    states: tl.tensor,
    times: tl.tensor,
    index: tl.tensor,
    values: tl.tensor,
    n: tl.tensor,
    DIM: tl.constexpr,
    STATES: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STATE_COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1).to(tl.int64)
    there = slot >= 0
    time = tl.load(times + i, mask=there, other=0)
    tl.store(index + word(slot, TIMES, LINES), time, mask=there)
    column = tl.arange(0, COLUMNS)[None, :]
    inside = there[:, None] & (column < DIM)
    row = tl.load(rows + i[:, None] * DIM + column, mask=inside, other=0.0)
    tl.store(values + slot[:, None] * STRIDE + column, row, mask=inside)
    if STATES > 0:
        column = tl.arange(0, STATE_COLUMNS)[None, :]
        inside = there[:, None] & (column < STATES)
        state = tl.load(states + i[:, None] * STATES + column, mask=inside, other=0.0)
        tl.store(values + slot[:, None] * STRIDE + DIM + column, state, mask=inside)


def put_rows(
    table: Arrays,
    slots: Int32[Tensor, "n"],
    rows: Float32[Tensor, "n dim"],
    states: Float32[Tensor, "n floats"],
    times: Int64[Tensor, "n"],
) -> None:
    """Sets the rows, states and times of slots that differ; negative ones are left out.

    Of several tables, slots are numbered through all of them.
    """
    n, floats = states.shape
    if n:
        tile = reader_tile(max(table.dim, floats))
        _put_rows[blocks(n, tile["ROWS"])](
            *(slots, rows, states, times, table.index, table.values, n),
            DIM=table.dim,
            STATES=floats,
            STRIDE=table.stride,
            LINES=table.lines,
            ROWS=tile["ROWS"],
            COLUMNS=columns_of(table.dim),
            STATE_COLUMNS=columns_of(max(1, floats)),
        )
