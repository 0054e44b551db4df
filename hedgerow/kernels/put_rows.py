"""Puts whole rows of ids that have none into a table: they come from another store of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int32, Int64
from .find import span_of, table_of
from .find_or_insert import claim
from .layout import Arrays
from .placement import TIMES, word
from .toolchain import blocks, columns_of, jit, several, tl, writer_tile


@jit(do_not_specialize=["n", "buckets", "now"])
def _put_rows(
    ids: tl.tensor,
    wanted: tl.tensor,
    rows: tl.tensor,
    states: tl.tensor,
    times: tl.tensor,
    index: tl.tensor,
    values: tl.tensor,
    spans: tl.tensor | None,
    splits: tl.tensor | None,
    used: tl.tensor,
    counts: tl.tensor,
    places: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
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
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    base, count, live = span_of((spans, splits), None, i, n, buckets, K, ROOM)
    live = live & tl.load(wanted + i, mask=live, other=0).to(tl.int1)
    slot, born = claim(index, tl.load(ids + i, mask=live, other=0), live, base, count, LINES)
    tl.store(places + i, tl.where(born, slot, -1).to(tl.int32), mask=i < n)
    tl.store(used + slot, tl.zeros((ROWS,), tl.int32) + now, mask=born)
    k = tl.zeros((ROWS,), tl.int32)
    if spans is not None:
        k = tl.where(live, table_of(splits, i, K, ROOM), 0)
    tl.atomic_add(counts + k, tl.full((ROWS,), 1, tl.int64), mask=born, sem="relaxed")
    tl.store(index + word(slot, TIMES, LINES), tl.load(times + i, mask=born, other=0), mask=born)
    column = tl.arange(0, COLUMNS)[None, :]
    inside = born[:, None] & (column < DIM)
    row = tl.load(rows + i[:, None] * DIM + column, mask=inside, other=0.0)
    tl.store(values + slot[:, None] * STRIDE + column, row, mask=inside)
    if STATES > 0:
        column = tl.arange(0, STATE_COLUMNS)[None, :]
        inside = born[:, None] & (column < STATES)
        state = tl.load(states + i[:, None] * STATES + column, mask=inside, other=0.0)
        tl.store(values + slot[:, None] * STRIDE + DIM + column, state, mask=inside)


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """What is kept of rows that come: when each slot was used last, and how many came by table."""

    used: Int32[Tensor, "slots"]
    came: Int64[Tensor, "K"]


def put_rows(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    wanted: Bool[Tensor, "n"],
    rows: Float32[Tensor, "n dim"],
    states: Float32[Tensor, "n floats"],
    times: Int64[Tensor, "n"],
    uses: Uses,
    now: int,
    splits: Int64[Tensor, "K+1"] | None = None,
) -> Int32[Tensor, "n"]:
    """Gives ids that have no row these, with their states and times, as used `now`.

    Ids may be equal: of such one gets its row. The slots that were taken, numbered through all
    tables; -1 for an id that has a row, that is not `wanted`, or that found no room.
    """
    n, floats = states.shape
    places = torch.empty(n, dtype=torch.int32, device=ids.device)
    if n:
        tile = writer_tile(max(table.dim, floats))
        _put_rows[blocks(n, tile["ROWS"])](
            *(ids, wanted, rows, states, times, table.index, table.values, table.spans, splits),
            *(uses.used, uses.came, places, n, table.buckets, now),
            **several(table.tables),
            DIM=table.dim,
            STATES=floats,
            STRIDE=table.stride,
            LINES=table.lines,
            **{**tile, "COLUMNS": columns_of(table.dim)},
            STATE_COLUMNS=columns_of(max(1, floats)),
        )
    return places
