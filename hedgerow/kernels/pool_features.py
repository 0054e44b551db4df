"""Looks up and pools all features of similar tables in one kernel, and spreads their gradients.

The kernel also records what an update needs: the slot of each id, and its output vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Float32, Int32, Int64
from .find import probe
from .first_values import draw_of, start_rows
from .layout import Arrays, FirstValues, RowSegment
from .lookup import rows_at
from .output_gradients import Occurrences, OutputGradients, arguments, gradient_at
from .placement import LANES, mix_at
from .toolchain import blocks, columns_of, jit, reader_tile, tl

SUM, MEAN, SQRTN, MAX, FIRST = range(5)
CODES = {"sum": SUM, "mean": MEAN, "sqrtn": SQRTN, "max": MAX, "first": FIRST}
RECORD = 7  # numbers per unit, see `Features`
_MEAN, _SQRTN, _MAX, _FIRST = (
    tl.constexpr(MEAN),
    tl.constexpr(SQRTN),
    tl.constexpr(MAX),
    tl.constexpr(FIRST),
)
_RECORD = tl.constexpr(RECORD)
_TILE = 512  # values per block of vectors, as measured for `segments`
_TOGETHER = 64  # ids that one program searches at once


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The features of a group of similar tables, constant over batches.

    A unit is one output vector per sample. A feature has one unit, or `n` units if its pooling is
    `("first", n)`. A unit has seven numbers: feature, table, index among the names of a batch,
    pooling, number of units of the feature, first unit of the feature, and first unit of the
    feature among those with max pooling (-1 without max pooling).
    """

    units: Int64[Tensor, "U 7"]
    tables: tuple[int, ...]  # of each feature
    fans: tuple[int, ...]  # units of each feature
    largest: tuple[int, ...]  # the last number of each feature's units
    poolings: frozenset[int]
    # Spans and parts with one line per feature, for kernels that work by feature.
    spans: Int64[Tensor, "F 2"]
    parts: tuple[RowSegment, ...]

    @staticmethod
    def of(
        table: Arrays,
        parts: Sequence[RowSegment],
        tables: Sequence[int],
        places: Sequence[int],
        poolings: Sequence[str | tuple[str, int]],
    ) -> Features:
        """Builds the features from table numbers, indices among a batch's names, and poolings."""
        units: list[tuple[int, ...]] = []
        fans, starts, codes = [], [], []
        largest = 0
        for f, (k, place, pooling) in enumerate(zip(tables, places, poolings, strict=True)):
            name, fan = (pooling, 1) if isinstance(pooling, str) else pooling
            code = CODES.get(name, SUM)
            first = largest if code == MAX else -1
            largest += code == MAX
            units += [(f, k, place, code, fan, len(units), first)] * fan
            fans.append(fan)
            starts.append(first)
            codes.append(code)
        device, owners = table.index.device, torch.tensor(tables, device=table.index.device)
        assert table.spans is not None  # a group has several tables
        return Features(
            torch.tensor(units, device=device),
            tuple(tables),
            tuple(fans),
            tuple(starts),
            frozenset(codes),
            table.spans[owners],
            tuple(
                part if part.draws is None else replace(part, draws=part.draws[owners])
                for part in parts
            ),
        )


@jit
def _unit_of(
    units: tl.tensor, row: tl.tensor, inside: tl.tensor, samples: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Returns the numbers of each output row's unit, see `Features`, and its row in its feature."""
    record = units + (row // samples) * _RECORD
    feature = tl.load(record, mask=inside, other=0)
    k = tl.load(record + 1, mask=inside, other=0)
    place = tl.load(record + 2, mask=inside, other=0)
    pooling = tl.load(record + 3, mask=inside, other=0)
    fan = tl.load(record + 4, mask=inside, other=1)
    own = row - tl.load(record + 5, mask=inside, other=0).to(tl.int32) * samples
    largest = tl.load(record + 6, mask=inside, other=-1)
    return feature, k, place, pooling, fan.to(tl.int32), own, largest


@jit
def _bag_of(
    offsets: tl.tensor,
    shifts: tl.tensor,
    unit: tl.tuple,
    inside: tl.tensor,
    samples: tl.tensor,
    FIRSTS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns the first id of each output row, the end, and the size of the whole bag.

    Row j of a feature that returns its first n rows has one id. Its last row also has the ids that
    are in no output.
    """
    feature, _, place, pooling, fan, own, _ = unit
    sample = own // fan if FIRSTS else own
    at = place * samples + sample
    shift = tl.load(shifts + feature, mask=inside, other=0)
    first = tl.load(offsets + at, mask=inside, other=0) + shift
    end = tl.load(offsets + at + 1, mask=inside, other=0) + shift
    size = end - first
    if FIRSTS:
        number = own - sample * fan
        some = pooling == _FIRST
        stop = tl.where(some & (number < fan - 1), tl.minimum(first + number + 1, end), end)
        first, end = tl.where(some, tl.minimum(first + number, end), first), stop
    return first, end, size


@jit
def _tell(
    notes: tl.tuple,
    at: tl.tensor,
    more: tl.tensor,
    slot: tl.tensor,
    row: tl.tensor,
    divisor: tl.tensor,
) -> None:
    """Records for an update the slot, output row and divisor of each occurrence."""
    slots, rows, divisors = notes
    tl.store(slots + at, slot.to(tl.int32), mask=more)
    tl.store(rows + at, row.to(tl.int32), mask=more)
    if divisors is not None:
        factor = tl.zeros_like(at).to(tl.float32) + divisor[:, None]
        tl.store(divisors + at, factor, mask=more)


@jit
def _pooled(
    total: tl.tensor,
    best: tl.tensor,
    rows: tl.tensor,
    at: tl.tensor,
    more: tl.tensor,
    begins: tl.tensor,
    pooling: tl.tensor,
    MAXES: tl.constexpr,
    FIRSTS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Adds one more row to each vector that has one.

    Returns the vectors and the largest occurrences.
    """
    new = total + rows
    if FIRSTS:
        new = tl.where((pooling == _FIRST)[:, None], rows, new)
        more = more & ((pooling != _FIRST) | begins)
    more = more[:, None]
    if MAXES:
        largest = (pooling == _MAX)[:, None]
        wins = begins | (rows > total)
        new = tl.where(largest, tl.where(wins, rows, total), new)
        places = tl.zeros_like(best) + at.to(tl.int32)[:, None]
        best = tl.where(more & largest & wins, places, best)
    return tl.where(more, new, total), best


@jit
def _found_rows(
    state: tl.tuple,
    bag: tl.tuple,
    done: tl.tensor,
    slot: tl.tensor,
    memory: tl.tuple,
    TOGETHER: tl.constexpr,
    MAXES: tl.constexpr,
    FIRSTS: tl.constexpr,
    DIM: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Applies `_pooled` to the next ids of each bag.

    An id without a slot counts as its row in `others`, if given, or as zeros.
    """
    total, best = state
    first, end, pooling = bag
    values, weights, others = memory
    t = tl.arange(0, TOGETHER)[None, :]
    for j in tl.static_range(TOGETHER):  # pyright: ignore[reportGeneralTypeIssues]
        at = first + done + j
        more = at < end
        place = tl.sum(tl.where(t == j, slot, 0), axis=1)
        rows = rows_at(values, place, DIM, STRIDE, COLUMNS)
        if others is not None:
            absent = more & (place < 0)
            other = rows_at(others, tl.where(absent, at, -1), DIM, DIM, COLUMNS)
            rows = tl.where(absent[:, None], other, rows)
        if weights is not None:
            rows = rows * tl.load(weights + at, mask=more, other=0.0)[:, None]
        begins = done + j == 0
        total, best = _pooled(total, best, rows, at, more, begins, pooling, MAXES, FIRSTS)
    return total, best


@jit
def _rows_and_births(
    state: tl.tuple,
    bag: tl.tuple,
    done: tl.tensor,
    slot: tl.tensor,
    key: tl.tensor,
    draw: tl.tuple,
    memory: tl.tuple,
    KIND: tl.constexpr,
    START: tl.constexpr,
    ROWS: tl.constexpr,
    TOGETHER: tl.constexpr,
    MAXES: tl.constexpr,
    FIRSTS: tl.constexpr,
    DIM: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Like `_found_rows`, but ids without a row count as their first values."""
    total, best = state
    first, end, pooling = bag
    values, weights, _ = memory
    seed, low, scale = draw
    t = tl.arange(0, TOGETHER)[None, :]
    j = tl.full((), 0, tl.int32)
    while j < TOGETHER:  # a loop, so that the drawing code exists only once
        at = first + done + j
        more = at < end
        place = tl.sum(tl.where(t == j, slot, 0), axis=1)
        rows = rows_at(values, place, DIM, STRIDE, COLUMNS)
        wanted = tl.sum(tl.where(t == j, key, 0), axis=1)
        born = start_rows(wanted, seed, low, scale, KIND, START, ROWS, COLUMNS)
        rows = tl.where((more & (place < 0))[:, None], born, rows)
        if weights is not None:
            rows = rows * tl.load(weights + at, mask=more, other=0.0)[:, None]
        begins = done + j == 0
        total, best = _pooled(total, best, rows, at, more, begins, pooling, MAXES, FIRSTS)
        j += 1
    return total, best


@jit
def _slots_of(
    table: tl.tuple,
    key: tl.tensor,
    at: tl.tensor,
    more: tl.tensor,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    TOGETHER: tl.constexpr,
) -> tl.tensor:
    """Returns the slots of some ids of each bag (-1 if absent): known ones, or by one search."""
    index, mix, known, span = table
    base, count = span
    if known is not None:
        slot = tl.load(known + at, mask=more, other=-1)
        return tl.where(slot >= 0, slot + base[:, None] * LANES, -1)
    else:  # noqa: RET505 (Triton wants both arms)
        nothing = tl.zeros((ROWS, TOGETHER), tl.int64)
        slot = probe(
            index,
            mix,
            tl.reshape(key, (ROWS * TOGETHER,)),
            tl.reshape(more, (ROWS * TOGETHER,)),
            tl.reshape(nothing + base[:, None], (ROWS * TOGETHER,)),
            tl.reshape(nothing + count[:, None], (ROWS * TOGETHER,)),
            LINES,
        )
        return tl.reshape(slot, (ROWS, TOGETHER))


@jit
def _divisor(
    pooling: tl.tensor, size: tl.tensor, ROWS: tl.constexpr, MEANS: tl.constexpr
) -> tl.tensor:
    """Returns the divisor of each bag's sum."""
    divisor = tl.full((ROWS,), 1.0, tl.float32)
    if MEANS:
        number = tl.maximum(size, 1).to(tl.float32)
        divisor = tl.where(pooling == _MEAN, number, divisor)
        divisor = tl.where(pooling == _SQRTN, tl.sqrt_rn(number), divisor)
    return divisor


@jit
def _pool_block(
    ids: tl.tensor,
    bag: tl.tuple,
    size: tl.tensor,
    table: tl.tuple,
    draw: tl.tuple,
    memory: tl.tuple,
    notes: tl.tuple,
    output: tl.tensor,
    KIND: tl.constexpr,
    MEANS: tl.constexpr,
    MAXES: tl.constexpr,
    FIRSTS: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    TOGETHER: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the vectors of some bags, and the occurrences of their largest values."""
    first, end, pooling = bag
    divisor = _divisor(pooling, size, ROWS, MEANS)
    t = tl.arange(0, TOGETHER)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    best = tl.full((ROWS, COLUMNS), -1, tl.int32)
    longest = tl.max(end - first, axis=0)
    done = tl.full((), 0, tl.int64)
    while done < longest:
        at = first[:, None] + done + t
        more = at < end[:, None]
        key = tl.load(ids + at, mask=more, other=0)
        slot = _slots_of(table, key, at, more, LINES, ROWS, TOGETHER)
        if START == 0:
            place = tl.zeros_like(at) + output[:, None]
            if FIRSTS:
                place = tl.where((pooling == _FIRST)[:, None] & (done + t > 0), -1, place)
            _tell(notes, at, more, slot, place, divisor)
        kept, absent = (total, best), tl.max((more & (slot < 0)).to(tl.int32))
        if KIND == "zeros":  # noqa: SIM114 (compile-time condition first)
            total, best = _found_rows(
                *(kept, bag, done, slot, memory, TOGETHER, MAXES, FIRSTS, DIM, STRIDE, COLUMNS)
            )
        elif absent == 0:
            total, best = _found_rows(
                *(kept, bag, done, slot, memory, TOGETHER, MAXES, FIRSTS, DIM, STRIDE, COLUMNS)
            )
        else:
            total, best = _rows_and_births(
                *(kept, bag, done, slot, key, draw, memory, KIND, START, ROWS, TOGETHER),
                *(MAXES, FIRSTS, DIM, STRIDE, COLUMNS),
            )
        done += TOGETHER
    if MEANS:
        total = tl.div_rn(total, tl.zeros_like(total) + divisor[:, None])
    return total, best


@jit(do_not_specialize=["vectors", "samples", "room", "buckets", "seed"])
def _pool_features(
    ids: tl.tensor,
    offsets: tl.tensor,
    shifts: tl.tensor,
    weights: tl.tensor | None,
    known: tl.tensor | None,
    others: tl.tensor | None,
    units: tl.tensor,
    index: tl.tensor,
    values: tl.tensor,
    spans: tl.tensor,
    draws: tl.tensor | None,
    out: tl.tensor,
    slots: tl.tensor,
    rows: tl.tensor,
    divisors: tl.tensor | None,
    winners: tl.tensor | None,
    vectors: tl.tensor,
    samples: tl.tensor,
    room: tl.tensor,
    buckets: tl.tensor,
    seed: tl.tensor,
    a: tl.tensor,
    scale: tl.tensor,
    KIND: tl.constexpr,
    MEANS: tl.constexpr,
    MAXES: tl.constexpr,
    FIRSTS: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    TOGETHER: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = _unit_of(units, row, row < vectors, samples)
    feature, k, _, pooling, _, own, largest = unit
    first, end, size = _bag_of(offsets, shifts, unit, row < vectors, samples, FIRSTS)
    span = tl.load(spans + 2 * k), tl.load(spans + 2 * k + 1)
    table, draw = (index, mix_at(index, buckets, LINES), known, span), (seed, a, scale)
    if draws is not None:
        draw = draw_of(draws, k)
    total, best = _pool_block(
        *(ids, (first, end, pooling), size, table, draw, (values + START, weights, others)),
        *((slots, rows, divisors), feature * room + own),
        *(KIND, MEANS, MAXES, FIRSTS, START, DIM, STRIDE, LINES, ROWS, TOGETHER, COLUMNS),
    )
    column = START + tl.arange(0, COLUMNS)[None, :]
    there = (row < vectors)[:, None] & (column < START + DIM)
    tl.store(out + row.to(tl.int64)[:, None] * WIDTH + column, total, mask=there)
    if MAXES:
        winner = winners + (largest * samples + own)[:, None] * WIDTH + column
        tl.store(winner, best, mask=there & (largest >= 0)[:, None])


def _tile_of(dim: int) -> dict[str, int]:
    """Returns the block of output vectors of a program, and how many ids of each it searches."""
    columns = columns_of(dim)
    rows = max(1, min(32, _TILE // columns))
    return {"ROWS": rows, "TOGETHER": max(2, min(8, _TOGETHER // rows)), "COLUMNS": columns}


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Known slots of ids, which make a search unnecessary.

    `slots` are numbered within each table, -1 for an absent id. An absent id has its row in
    `others`, if given, and otherwise counts as zeros. Rows of resident ids in `others` are not
    read.
    """

    slots: Int64[Tensor, "n"]
    others: Float32[Tensor, "n dim"] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """The output vectors, ordered by feature, and what an update needs."""

    vectors: Float32[Tensor, "vectors dim"]
    slots: Int32[Tensor, "n"]  # numbered over all tables; -1 if absent
    at: Occurrences


def pool_features(
    table: Arrays,
    features: Features,
    ids: Int64[Tensor, "n"],
    offsets: Int64[Tensor, "names*samples+1"],
    shifts: Int64[Tensor, "F"],
    samples: int,
    weights: Float32[Tensor, "n"] | None = None,
    parts: Sequence[RowSegment] = (),
    known: Known | None = None,
) -> Pooled:
    """Returns the vectors of all features: one per sample, or n for `("first", n)`.

    The ids of sample s of the feature at index p begin at `offsets[p * samples + s]`, plus the
    feature's entry of `shifts`, in `ids` and `weights`. Rows are added in order. Absent ids count
    as zeros, or with `parts` as their first values. With `known` there are no parts, and no search.
    """
    n, device, kinds = len(ids), ids.device, features.poolings
    vectors = samples * len(features.units)
    room = samples * max(features.fans)
    out = torch.empty(vectors, table.dim, dtype=torch.float32, device=device)
    slots, rows = (torch.empty(n, dtype=torch.int32, device=device) for _ in range(2))
    means, maxes = bool(kinds & {MEAN, SQRTN}), MAX in kinds
    divisors = torch.empty(n, dtype=torch.float32, device=device) if means else None
    winners = None
    if maxes:
        many = samples * sum(first >= 0 for first in features.largest)
        winners = torch.empty(many, table.dim, dtype=torch.int32, device=device)
    where = (None, None) if known is None else (known.slots, known.others)
    zeros = FirstValues("zeros", 0.0, 0.0, 0)
    columns = [(part.start, part.dim, part.first, part.draws) for part in parts]
    for start, dim, draw, draws in (columns or [(0, table.dim, zeros, None)]) if vectors else ():
        tile = _tile_of(dim)
        _pool_features[blocks(vectors, tile["ROWS"])](
            *(ids, offsets, shifts, weights, *where, features.units, table.index, table.values),
            *(table.spans, draws, out, slots, rows, divisors, winners),
            *(vectors, samples, room, table.buckets, signed64(draw.seed), draw.a, draw.scale),
            KIND=draw.kind,
            MEANS=means,
            MAXES=maxes,
            FIRSTS=FIRST in kinds,
            START=start,
            DIM=dim,
            WIDTH=table.dim,
            STRIDE=table.stride,
            LINES=table.lines,
            **tile,
            enable_fp_fusion=False,
        )
    return Pooled(out, slots, Occurrences(room, rows, divisors, weights, winners))


@jit(do_not_specialize=["n", "room", "start"])
def _spread(
    base: tl.tensor,
    places: tl.tensor,
    rows: tl.tensor | None,
    divisors: tl.tensor | None,
    weights: tl.tensor | None,
    largest: tl.tensor | None,
    room: tl.tensor,
    at: tl.tensor | None,
    out: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    DIM: tl.constexpr,
    FORM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    grads = (base, places, rows, divisors, weights, largest, room)
    source = start + i if at is None else tl.load(at + i, mask=i < n, other=0)
    grad = gradient_at(grads, source, i < n, column, column < DIM, DIM, FORM)
    tl.store(out + i * DIM + column, grad, mask=(i < n) & (column < DIM))


def spread(grads: OutputGradients, start: int, stop: int) -> Float32[Tensor, "stop-start dim"]:
    """Returns one gradient per occurrence, for the occurrences start..stop-1."""
    return _spread_into(grads, None, start, stop - start)


def spread_at(grads: OutputGradients, at: Int64[Tensor, "m"]) -> Float32[Tensor, "m dim"]:
    """Returns one gradient per occurrence, for the occurrences at these positions."""
    return _spread_into(grads, at, 0, len(at))


def _spread_into(
    grads: OutputGradients, at: Int64[Tensor, "m"] | None, start: int, n: int
) -> Float32[Tensor, "n dim"]:
    out = torch.empty(n, grads.dim, dtype=torch.float32, device=grads.device)
    if n and grads.dim:
        tile = reader_tile(grads.dim)
        _spread[blocks(n, tile["ROWS"])](
            *(*arguments(grads), at, out, start, n),
            DIM=grads.dim,
            FORM=grads.form,
            **tile,
            enable_fp_fusion=False,
        )
    return out
