"""Puts all rows of a table into another one, which may have more buckets."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Int64
from .find_or_insert import claim
from .layout import Arrays
from .placement import EMPTY, ERASED, LANES, mix_at, word
from .toolchain import blocks, jit, tl, writer_tile


@jit(do_not_specialize=["slots", "own", "buckets"])
def _rehash(
    old_index: tl.tensor,
    old_values: tl.tensor,
    old_pins: tl.tensor | None,
    index: tl.tensor,
    values: tl.tensor,
    pins: tl.tensor | None,
    moved: tl.tensor,
    slots: tl.tensor,
    own: tl.tensor,
    buckets: tl.tensor,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    old = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    key = tl.load(old_index + word(old, 0, LINES), mask=old < slots, other=EMPTY)
    taken = (key != EMPTY) & (key != ERASED)
    special = old // LANES == own
    key = tl.where(special, tl.where(old % LANES == 0, EMPTY, ERASED), key)
    slot, _ = claim(index, mix_at(index, buckets, LINES), key, taken, 0, buckets, LINES)
    there = slot >= 0
    tl.store(moved + old, slot, mask=old < slots)
    for line in tl.static_range(1, LINES):  # pyright: ignore[reportGeneralTypeIssues]
        stamp = tl.load(old_index + word(old, line, LINES), mask=there, other=0)
        tl.store(index + word(slot, line, LINES), stamp, mask=there)
    if pins is not None:
        held = tl.load(old_pins + old, mask=there, other=0)
        tl.store(pins + slot, held, mask=there)
    for part in tl.static_range((STRIDE + COLUMNS - 1) // COLUMNS):  # pyright: ignore[reportGeneralTypeIssues]
        column = part * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        here = there[:, None] & (column < STRIDE)
        row = tl.load(old_values + old[:, None] * STRIDE + column, mask=here, other=0.0)
        tl.store(values + slot[:, None] * STRIDE + column, row, mask=here)


def rehash(table: Arrays, larger: Arrays) -> Int64[Tensor, "slots"]:
    """Copies all rows of a table into an empty one, with times, scores and pins; their new slots.

    -1 where a slot has no row, or its row found no room. Both must be for one kind of rows.
    """
    slots = len(table.values)
    moved = torch.empty(slots, dtype=torch.int64, device=table.index.device)
    _rehash[blocks(slots, 32)](
        *(table.index, table.values, table.pins, larger.index, larger.values, larger.pins),
        *(moved, slots, table.buckets, larger.buckets),
        STRIDE=table.stride,
        LINES=table.lines,
        **{**writer_tile(64), "ROWS": 32},
    )
    return moved
