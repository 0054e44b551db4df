"""Puts whole rows of ids that have none into a table: they come from another store of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Float32, Int32, Int64
from .absent import Listing, list_of
from .coming import Coming, parts_of
from .find import own_slot, span_of, table_of
from .find_or_insert import claim
from .layout import Arrays
from .placement import TIMES, mix_at, word
from .toolchain import blocks, columns_of, jit, several, tl, writer_tile


@jit
def _tell(
    batch: tl.tuple,
    slot: tl.tensor,
    i: tl.tensor,
    k: tl.tensor,
    first: tl.tensor,
    inside: tl.tensor,
    room: tl.tensor,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """Sets the slots of the batch that listed these; where each stands in the batch."""
    at, cuts, slots, left = batch
    start, _ = list_of(cuts, k, room)
    where = tl.load(at + start + i - first, mask=inside, other=0)
    tl.store(slots + where, slot, mask=inside)
    lost = inside & (slot < 0)
    if tl.max(lost.to(tl.int32), axis=0) > 0:
        tl.atomic_add(left + k, tl.full((ROWS,), 1, tl.int64), mask=lost, sem="relaxed")
    return where


@jit(do_not_specialize=["n", "buckets", "now", "room"])
def _put_rows(
    piece: tl.tensor,
    index: tl.tensor,
    values: tl.tensor,
    spans: tl.tensor,
    used: tl.tensor,
    counts: tl.tensor,
    places: tl.tensor,
    at: tl.tensor | None,
    cuts: tl.tensor | None,
    slots: tl.tensor | None,
    out: tl.tensor | None,
    words: tl.tensor | None,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    room: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    DIM: tl.constexpr,
    STATES: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STATE_COLUMNS: tl.constexpr,
) -> None:
    ids, wanted, rows, states, times = parts_of(piece, n, K, DIM, STATES)
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    base, count, inside = span_of((spans, piece), None, i, n, buckets, K, ROOM)
    live = inside & tl.load(wanted + i, mask=inside, other=0).to(tl.int1)
    column = tl.arange(0, COLUMNS)[None, :]
    # All that may come from far is asked for before the search, which waits for its own loads.
    asked = live if out is None else inside
    row = tl.load(rows + i[:, None] * DIM + column, mask=asked[:, None] & (column < DIM), other=0.0)
    time = tl.load(times + i, mask=live, other=0)
    ids_here, mix = tl.load(ids + i, mask=live, other=0), mix_at(index, buckets, LINES)
    slot, born = claim(index, mix, ids_here, live, base, count, LINES)
    tl.store(places + i, tl.where(born, slot, -1).to(tl.int32), mask=i < n)
    tl.store(used + slot, tl.zeros((ROWS,), tl.int32) + now, mask=born)
    k = tl.where(inside, table_of(piece, i, K, ROOM), 0)
    tl.atomic_add(counts + k, tl.full((ROWS,), 1, tl.int64), mask=born, sem="relaxed")
    tl.store(index + word(slot, TIMES, LINES), time, mask=born)
    there = born[:, None] & (column < DIM)
    tl.store(values + slot[:, None] * STRIDE + column, row, mask=there)
    if STATES > 0:
        state_column = tl.arange(0, STATE_COLUMNS)[None, :]
        there = born[:, None] & (state_column < STATES)
        state = tl.load(states + i[:, None] * STATES + state_column, mask=there, other=0.0)
        tl.store(values + slot[:, None] * STRIDE + DIM + state_column, state, mask=there)
    if at is not None:
        batch, first = (at, cuts, slots, words + K), tl.load(piece + k)
        where = _tell(batch, own_slot(slot, base), i, k, first, inside, room, ROWS)
        if out is not None:
            there = inside[:, None] & (column < DIM)
            tl.store(out + where[:, None] * DIM + column, row, mask=there)


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """What is kept of rows that come: when each slot was used last, and how many came by table."""

    used: Int32[Tensor, "slots"]
    came: Int64[Tensor, "K"]


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A batch that has listed the ids that come, which is told of them.

    Its slots are numbered within each table, -1 for an id without a place; the listing counts these
    by table. Its rows in `out`, if given, are those that come, whether they find a place or not.
    """

    listing: Listing
    slots: Int64[Tensor, "batch"]
    out: Float32[Tensor, "batch dim"] | None


def put_rows(
    table: Arrays, coming: Coming, uses: Uses, now: int, waiting: Waiting | None = None
) -> Int32[Tensor, "n"]:
    """Gives ids of several tables that have no row those that come, as used `now`.

    Ids may be equal: of such one gets its row. The slots that were taken, numbered through all
    tables; -1 for an id that has a row, that was not found, or that has no room.

    If a batch is `waiting`, these are the ids of its list, in that order, all of each table: it is
    told where they are. Equal ids were found all, or none of them.
    """
    n, floats = coming.rows, coming.state_floats
    places = torch.empty(n, dtype=torch.int32, device=table.index.device)
    told, room = (None,) * 5, 0
    if waiting is not None:
        listing, room = waiting.listing, waiting.listing.room
        told = (listing.at, listing.cuts, waiting.slots, waiting.out, listing.words)
    if n:
        tile = writer_tile(max(table.dim, floats))
        _put_rows[blocks(n, tile["ROWS"])](
            *(coming.words, table.index, table.values, table.spans, uses.used, uses.came),
            *(places, *told, n, table.buckets, now, room),
            **several(table.tables),
            DIM=table.dim,
            STATES=floats,
            STRIDE=table.stride,
            LINES=table.lines,
            **{**tile, "COLUMNS": columns_of(table.dim)},
            STATE_COLUMNS=columns_of(max(1, floats)),
        )
    return places
