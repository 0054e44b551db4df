"""The two buckets of an id."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Int64
from . import layout
from .toolchain import blocks, jit, tl

EMPTY = tl.constexpr(layout.EMPTY)
ERASED = tl.constexpr(layout.ERASED)
HOME_LANES = tl.constexpr(layout.HOME_LANES)
LANES = tl.constexpr(layout.LANES)
TIMES = tl.constexpr(layout.TIMES)
MIX_START = tl.constexpr(layout.MIX_START)
MIX_1 = tl.constexpr(layout.MIX_1)
MIX_2 = tl.constexpr(layout.MIX_2)
MIX = tl.constexpr(layout.MIX)


@jit
def mixed(
    x: tl.tensor,
    add: tl.tensor,
    by_1: tl.tensor,
    by_2: tl.tensor,
) -> tl.tensor:
    """Returns the hash of unsigned numbers with the words of `mix_of`."""
    x = x + (add.to(tl.uint64, bitcast=True) + MIX_START)
    x = (x ^ (x >> 30)) * (by_1.to(tl.uint64, bitcast=True) ^ MIX_1)
    x = (x ^ (x >> 27)) * (by_2.to(tl.uint64, bitcast=True) ^ MIX_2)
    return x ^ (x >> 31)


@jit
def word(slots: tl.tensor, LINE: tl.constexpr, LINES: tl.constexpr) -> tl.tensor:
    """Returns the index position of the key (line 0), time or score of a slot."""
    return (slots // LANES) * (LINES * LANES) + LINE * LANES + slots % LANES


@jit
def candidates(
    mix: tl.tensor, ids: tl.tensor, base: tl.tensor, buckets: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Returns two buckets of each id, distinct if possible, among `buckets` from `base` on.

    They come from the halves of one hash. `mix` points to the inverted words of `mix_of`. These are
    the same for all ids, so they are loaded before the table of each id is known.
    """
    add, by_1, by_2 = ~tl.load(mix), ~tl.load(mix + 1), ~tl.load(mix + 2)
    hashed = mixed(ids.to(tl.uint64, bitcast=True), add, by_1, by_2)
    count = buckets.to(tl.uint64)
    first = ((hashed >> 32) * count) >> 32
    second = ((hashed & 0xFFFFFFFF) * count) >> 32
    neighbour = tl.where(first + 1 < count, first + 1, 0)
    second = tl.where(second == first, neighbour, second)
    return base + first.to(tl.int64, bitcast=True), base + second.to(tl.int64, bitcast=True)


@jit
def mix_at(index: tl.tensor, buckets: tl.tensor, LINES: tl.constexpr) -> tl.tensor:
    """Returns the address of the slot key's words, behind all buckets of the table or tables."""
    return index + (buckets.to(tl.int64) * LINES + TIMES + 1) * LANES - MIX


@jit
def own_place(ids: tl.tensor, base: tl.tensor, buckets: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Returns whether an id equals a marker of free slots, and the slot reserved for it."""
    special = (ids == EMPTY) | (ids == ERASED)
    return special, (base + buckets.to(tl.int64)) * LANES + (ids == ERASED).to(tl.int64)


@jit(do_not_specialize=["n", "buckets"])
def _place(
    mix: tl.tensor,
    ids: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    one, two = candidates(mix, tl.load(ids + i, mask=i < n, other=0), 0, buckets)
    tl.store(first + i, one, mask=i < n)
    tl.store(second + i, two, mask=i < n)


def place(
    ids: Int64[Tensor, "n"], buckets: int, slot_key: int = 0
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
    """Returns the first and second bucket of each id."""
    first, second = torch.empty_like(ids), torch.empty_like(ids)
    if len(ids):
        mix = layout.turned(layout.mix_of(slot_key), ids.device)
        _place[blocks(len(ids), 128)](mix, ids, first, second, len(ids), buckets, ROWS=128)
    return first, second
