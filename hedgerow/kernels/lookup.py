"""Kernels that read rows: by slot (`gather`, `read`), or by id in one pass (`lookup`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Float32, Int32, Int64
from .find import own_slot, probe, span_of, table_of
from .first_values import draw_of, start_rows
from .layout import Arrays, FirstValues, RowSegment
from .placement import LANES, mix_at
from .toolchain import blocks, jit, reader_tile, several, tl


@jit
def rows_at(
    values: tl.tensor,
    slots: tl.tensor,
    DIM: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns the rows in these slots; zeros where a slot is -1."""
    column = tl.arange(0, COLUMNS)[None, :]
    there = (slots >= 0)[:, None] & (column < DIM)
    return tl.load(values + slots[:, None] * STRIDE + column, mask=there, other=0.0)


@jit(do_not_specialize=["n", "buckets"])
def _gather(
    slots: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    spans: tl.tensor | None,
    splits: tl.tensor | None,
    n: tl.tensor,
    buckets: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    DIM: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    slot = tl.load(slots + i, mask=i < n, other=-1)
    if splits is not None:
        base, _, _ = span_of((spans, splits), None, i, n, buckets, K, ROOM)
        slot = tl.where(slot >= 0, slot + base * LANES, -1)
    rows = rows_at(values, slot, DIM, STRIDE, COLUMNS)
    tl.store(out + i[:, None] * DIM + column, rows, mask=(i < n)[:, None] & (column < DIM))


def gather(
    table: Arrays, slots: Int64[Tensor, "n"], states: int | None = None
) -> Float32[Tensor, "n width"]:
    """Returns the rows in `slots`, or `states` floats behind them; zeros for -1."""
    width, first = (table.dim, 0) if states is None else (states, table.dim)
    out = torch.empty(len(slots), width, dtype=torch.float32, device=slots.device)
    _read_into(out, table, slots, table.values[:, first:], None)
    return out


def read(
    table: Arrays,
    slots: Int64[Tensor, "n"],
    out: Float32[Tensor, "n dim"],
    splits: Int64[Tensor, "K+1"],
) -> None:
    """Reads into `out` the rows in slots that are numbered within each of several tables.

    `splits` divides the slots by table.
    """
    _read_into(out, table, slots, table.values, splits)


def _read_into(
    out: Float32[Tensor, "n width"],
    table: Arrays,
    slots: Int64[Tensor, "n"],
    values: Float32[Tensor, "slots floats"],
    splits: Int64[Tensor, "K+1"] | None,
) -> None:
    n, width = out.shape
    if n and width:
        tile = reader_tile(width)
        _gather[blocks(n, tile["ROWS"])](
            *(slots, values, out, None if splits is None else table.spans, splits, n),
            table.buckets,
            **several(table.tables),
            DIM=width,
            STRIDE=table.stride,
            **tile,
        )


@jit(do_not_specialize=["n", "buckets", "room", "seed"])
def _lookup(
    ids: tl.tensor,
    used: tl.tensor | None,
    index: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    slots: tl.tensor,
    outputs: tl.tensor | None,
    spans: tl.tensor | None,
    splits: tl.tensor | None,
    draws: tl.tensor | None,
    n: tl.tensor,
    buckets: tl.tensor,
    room: tl.tensor,
    seed: tl.tensor,
    a: tl.tensor,
    scale: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    KIND: tl.constexpr,
    NUMBERED: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    base, count, live = span_of((spans, splits), used, i, n, buckets, K, ROOM)
    key = tl.load(ids + i, mask=live, other=0)
    slot = probe(index, mix_at(index, buckets, LINES), key, live, base, count, LINES)
    if NUMBERED:
        tl.store(slots + i, slot.to(tl.int32), mask=i < n)
    else:
        tl.store(slots + i, own_slot(slot, base), mask=i < n)
    if outputs is not None:
        k = tl.where(i < n, table_of(splits, i, K, ROOM), 0)
        row = k * room.to(tl.int64) + i - tl.load(splits + k)
        tl.store(outputs + i, row.to(tl.int32), mask=i < n)
    rows = rows_at(values + START, slot, DIM, STRIDE, COLUMNS)
    if KIND != "zeros":
        absent = live & (slot < 0)
        if tl.max(absent.to(tl.int32), axis=0) > 0:
            draw = (seed, a, scale)
            if draws is not None:
                draw = draw_of(draws, tl.where(live, table_of(splits, i, K, ROOM), 0))
            first = start_rows(key, draw[0], draw[1], draw[2], KIND, START, ROWS, COLUMNS)
            rows = tl.where(absent[:, None], first, rows)
    column = tl.arange(0, COLUMNS)[None, :]
    there = (i < n)[:, None] & (column < DIM)
    tl.store(out + i[:, None] * WIDTH + START + column, rows, mask=there)


def lookup(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    out: Float32[Tensor, "n dim"],
    parts: Sequence[RowSegment] = (),
    used: Int64[Tensor, "K"] | None = None,
    splits: Int64[Tensor, "K+1"] | None = None,
) -> Int64[Tensor, "n"]:
    """Reads the rows of `ids` into `out`. Returns their slots, -1 if absent.

    With several tables, `splits` divides the ids by table, and slots are numbered within each
    table. Absent ids give zeros, or with `parts` their first values. Positions from `used` on give
    zeros.
    """
    slots = torch.empty_like(ids)
    _lookup_into(slots, None, 1, table, table.spans, ids, out, parts, used, splits)
    return slots


def lookup_features(
    table: Arrays,
    spans: Int64[Tensor, "F 2"],
    ids: Int64[Tensor, "n"],
    out: Float32[Tensor, "n dim"],
    parts: Sequence[RowSegment],
    borders: Int64[Tensor, "F+1"],
    room: int | None = None,
) -> tuple[Int32[Tensor, "n"], Int32[Tensor, "n"] | None]:
    """Looks up ids by feature. Line f of `spans` gives the table of feature f.

    `parts` hold the draws of the features. Slots are numbered over all tables. With `room` it also
    returns the output row of each id as `feature * room + row`, see `Occurrences`.
    """
    slots = torch.empty_like(ids, dtype=torch.int32)
    rows = None if room is None else torch.empty_like(slots)
    _lookup_into(slots, rows, room or 1, table, spans, ids, out, parts, None, borders)
    return slots, rows


def _lookup_into(
    slots: Tensor,
    rows: Int32[Tensor, "n"] | None,
    room: int,
    table: Arrays,
    spans: Int64[Tensor, "K 2"] | None,
    ids: Int64[Tensor, "n"],
    out: Float32[Tensor, "n dim"],
    parts: Sequence[RowSegment],
    used: Int64[Tensor, "K"] | None,
    splits: Int64[Tensor, "K+1"] | None,
) -> None:
    zeros = FirstValues("zeros", 0.0, 0.0, 0)
    columns = [(part.start, part.dim, part.first, part.draws) for part in parts]
    n = ids.shape[0]
    for start, dim, draw, draws in columns or [(0, table.dim, zeros, None)]:
        if n == 0:
            break
        tile = reader_tile(dim)
        _lookup[blocks(n, tile["ROWS"])](
            *(ids, used, table.index, table.values, out, slots, rows, spans, splits, draws),
            *(n, table.buckets, room, signed64(draw.seed), draw.a, draw.scale),
            **several(1 if spans is None else spans.shape[0]),
            KIND=draw.kind,
            NUMBERED=slots.dtype == torch.int32,
            START=start,
            DIM=dim,
            WIDTH=table.dim,
            STRIDE=table.stride,
            LINES=table.lines,
            **tile,
            enable_fp_fusion=False,
        )
