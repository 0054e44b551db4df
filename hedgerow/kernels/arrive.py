"""Tells a batch of rows that have come since it was looked up."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from .absent import Listing, list_of
from .find import own_slot, probe
from .layout import Arrays
from .toolchain import jit, reader_tile, tl


@jit(do_not_specialize=["room"])
def _arrive(
    words: tl.tensor,
    at: tl.tensor,
    cuts: tl.tensor | None,
    starts: tl.tensor,
    index: tl.tensor,
    spans: tl.tensor,
    rows: tl.tensor,
    slots: tl.tensor,
    out: tl.tensor | None,
    left: tl.tensor,
    room: tl.tensor,
    K: tl.constexpr,
    DIM: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    k = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = j < tl.load(words + k)
    start, _ = list_of(cuts, k, room)
    listed = start + j
    key = tl.load(words + K + listed, mask=live, other=0)
    i = tl.load(at + listed, mask=live, other=0)
    base, count = tl.load(spans + 2 * k), tl.load(spans + 2 * k + 1)
    slot = probe(index, key, live, base, count, LINES)
    tl.store(slots + i, own_slot(slot, base), mask=live)
    tl.atomic_add(left + k, tl.sum((live & (slot < 0)).to(tl.int64), axis=0), sem="relaxed")
    if out is not None:
        column = tl.arange(0, COLUMNS)[None, :]
        inside = live[:, None] & (column < DIM)
        source = (tl.load(starts + k) + j)[:, None] * DIM + column
        row = tl.load(rows + source, mask=inside, other=0.0)
        tl.store(out + i[:, None] * DIM + column, row, mask=inside)


def arrive(
    table: Arrays,
    listing: Listing,
    most: int,
    rows: Float32[Tensor, "m dim"],
    starts: Int64[Tensor, "K+1"],
    slots: Int64[Tensor, "n"],
    out: Float32[Tensor, "n dim"] | None = None,
) -> Int64[Tensor, "K"]:
    """Sets the slots of listed ids, and their rows in `out`; how many of each table have none.

    Slots are numbered within each table. All of the ids are listed, `most` of a table at most.
    Their `rows` lie in the order of the list, those of a table from its start on, whether they have
    come to the table or not.
    """
    assert table.spans is not None
    left = torch.zeros(listing.tables, dtype=torch.int64, device=slots.device)
    if most:
        tile = reader_tile(table.dim)
        _arrive[(-(-most // tile["ROWS"]), listing.tables)](
            *(listing.words, listing.at, listing.cuts, starts, table.index, table.spans),
            *(rows, slots, out, left, listing.room),
            K=listing.tables,
            DIM=table.dim,
            LINES=table.lines,
            **tile,
        )
    return left
