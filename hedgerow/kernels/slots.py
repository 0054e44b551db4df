"""Kernels over all slots of a table: growth, and selection of rows by time.

The host does not need the number of selected slots: outputs have an entry for every slot, and the
number stays on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Int64
from . import layout
from .evict import SCORE
from .find import claim
from .layout import Arrays
from .placement import EMPTY, ERASED, LANES, TIMES, mix_at, word
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
    """Copies all rows of a table, with times, scores and pins, into an empty one.

    Returns the new slots.

    A slot without a row, or whose row has no free slot in the new table, gives -1. Both tables must
    have the same kind of rows.
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


NEWBORN = tl.constexpr(layout.NEWBORN)
BLOCK = 1024  # slots per program


@jit
def _chosen(
    index: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns which slots have a row with a time in low..high-1, and their keys."""
    key = tl.load(index + word(slot, 0, LINES), mask=slot < slots, other=EMPTY)
    taken = (key != EMPTY) & (key != ERASED)
    stamp = tl.load(index + word(slot, TIMES, LINES), mask=taken, other=-1)
    time = stamp & SCORE
    return taken & (stamp >= 0) & (time >= low) & (time < high), key


@jit(do_not_specialize=["slots", "low", "high"])
def _count_chosen(
    index: tl.tensor,
    found: tl.tensor,
    slots: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    chosen, _ = _chosen(index, slot, slots, low, high, LINES)
    tl.store(found + tl.program_id(0), tl.sum(chosen.to(tl.int64), axis=0))


@jit(do_not_specialize=["slots", "low", "high"])
def _write_chosen(
    index: tl.tensor,
    before: tl.tensor,
    out: tl.tensor,
    slots: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    chosen, _ = _chosen(index, slot, slots, low, high, LINES)
    at = tl.load(before + tl.program_id(0)) + tl.cumsum(chosen.to(tl.int64), axis=0) - 1
    tl.store(out + at, slot, mask=chosen)


def select(
    table: Arrays, low: int = 0, high: int = layout.SCORE
) -> tuple[Int64[Tensor, "slots"], Int64[Tensor, "1"]]:
    """Returns the slots of rows with a time in low..high-1 followed by -1, and their number."""
    slots = len(table.values)
    grid = blocks(slots, BLOCK)
    found = torch.zeros(grid[0] + 1, dtype=torch.int64, device=table.index.device)
    out = torch.full((slots,), -1, device=table.index.device)
    limits = {"LINES": table.lines, "BLOCK": BLOCK}
    _count_chosen[grid](table.index, found[1:], slots, low, high, **limits)
    before = found.cumsum(0)
    _write_chosen[grid](table.index, before, out, slots, low, high, **limits)
    return out, before[-1:]


@jit(do_not_specialize=["slots", "own", "low", "high"])
def _erase_chosen(
    index: tl.tensor,
    pins: tl.tensor | None,
    count: tl.tensor,
    slots: tl.tensor,
    own: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    chosen, _ = _chosen(index, slot, slots, low, high, LINES)
    if pins is not None:
        chosen = chosen & (tl.load(pins + slot, mask=chosen, other=0) == 0)
    free = tl.where(slot // LANES == own, EMPTY, ERASED)
    tl.store(index + word(slot, 0, LINES), free, mask=chosen)
    for line in tl.static_range(1, LINES):  # pyright: ignore[reportGeneralTypeIssues]
        tl.store(index + word(slot, line, LINES), tl.zeros_like(slot) + NEWBORN, mask=chosen)
    tl.atomic_add(count, tl.sum(chosen.to(tl.int64), axis=0), sem="relaxed")


def erase_if(table: Arrays, low: int = 0, high: int = layout.SCORE) -> Int64[Tensor, "1"]:
    """Erases the rows of a single table with a time in low..high-1, except pinned ones.

    Returns the number of erased rows.
    """
    slots = len(table.values)
    count = torch.zeros(1, dtype=torch.int64, device=table.index.device)
    _erase_chosen[blocks(slots, BLOCK)](
        *(table.index, table.pins, count, slots, table.buckets, low, high),
        LINES=table.lines,
        BLOCK=BLOCK,
    )
    return count
