"""One optimizer step on the rows of a batch whose occurrences are grouped by slot.

`apply` works in one kernel over sorted ids. This file uses several kernels over sorted slots: find
or insert all keys, sort 32-bit slots, sum frequent ids, then update the rows without gaps. It
serves one or several tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Float32, Int32, Int64
from . import layout
from .find import table_of
from .first_values import draw_of, start_rows
from .layout import NO_STEP, Arrays, RowSegment
from .lookup import rows_at
from .output_gradients import OutputGradients, arguments, form_of, gradient_at
from .placement import EMPTY, ERASED, TIMES, word
from .rules import all_finite, count_up, stepped
from .runs import SHORT, Runs, runs, seat, sum_long_runs
from .sum_gradients import PIECE
from .toolchain import blocks, columns_of, jit, several, step_tile, tl

BORN = tl.constexpr(2**40)  # added to the slot of a new row between two kernels
NEWBORN = tl.constexpr(layout.NEWBORN)
AHEAD = tl.constexpr(4)  # occurrences whose loads are in flight together


@jit
def _short_sum(
    order: tl.tensor,
    grads: tl.tuple,
    begin: tl.tensor,
    length: tl.tensor,
    START: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    FORM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns the sums of runs, one occurrence after the other."""
    column = START + tl.arange(0, COLUMNS)[None, :]
    inside = column < START + DIM
    begin, length = begin[:, None], length[:, None]
    source = tl.load(order + begin, mask=length > 0, other=0)
    total = gradient_at(grads, source, length > 0, column, inside, WIDTH, FORM)
    longest = tl.max(length)
    done = tl.full((), 1, tl.int32)
    while done < longest:
        for _ in tl.static_range(AHEAD):
            more = done < length
            source = tl.load(order + begin + done, mask=more, other=0)
            grad = gradient_at(grads, source, more, column, inside, WIDTH, FORM)
            total = tl.where(more & inside, total + grad, total)
            done += 1
    return total


@jit
def _sum_of_pieces(
    total: tl.tensor,
    sums: tl.tensor,
    firsts: tl.tensor,
    begin: tl.tensor,
    length: tl.tensor,
    START: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns `total` with the sums of runs longer than SHORT filled in."""
    column = START + tl.arange(0, COLUMNS)[None, :]
    inside = column < START + DIM
    here = (length > SHORT)[:, None] & inside
    first = tl.load(sums + (begin // SHORT)[:, None] * WIDTH + column, mask=here, other=0.0)
    total = tl.where(here, first, total)
    longest = tl.max(length, axis=0)
    done = tl.full((), PIECE, tl.int32)
    while done < longest:
        for _ in tl.static_range(AHEAD):
            here = (done < length)[:, None] & inside
            at = firsts + (begin + done) // PIECE
            part = tl.load(sums + at[:, None] * WIDTH + column, mask=here, other=0.0)
            total = tl.where(here, total + part, total)
            done += PIECE
    return total


@jit
def _summed(
    batch: tl.tuple,
    begin: tl.tensor,
    length: tl.tensor,
    START: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    FORM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns the sum of the gradients of each run in DIM of the WIDTH columns, from START on."""
    order, grads, sums, firsts = batch
    short = tl.where(length <= SHORT, length, 0)
    total = _short_sum(order, grads, begin, short, START, DIM, WIDTH, FORM, COLUMNS)
    if tl.max(length, axis=0) > SHORT:
        total = _sum_of_pieces(total, sums, firsts, begin, length, START, DIM, WIDTH, COLUMNS)
    return total


@jit
def _settled(
    table: tl.tuple,
    slot: tl.tensor,
    old: tl.tensor,
    key: tl.tensor,
    source: tl.tensor,
    length: tl.tensor,
    finite: tl.tensor,
    now: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    TOTALS: tl.constexpr,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the slots of rows that will change (-1 for others), and which of them are new.

    Also writes their times, which were `old`. New ids whose sums are not finite give their slots
    back.
    """
    index, counts, splits = table
    there = slot >= 0
    born, lost = there & (old == NEWBORN), there & ~finite
    changes = there & finite
    tl.debug_barrier()  # all warps read the time before any of them writes it
    time = tl.zeros_like(slot) + now
    tl.store(index + word(slot, TIMES, LINES), time, mask=changes & (old != now))
    if tl.max(lost.to(tl.int32), axis=0) > 0:
        free = tl.where((key == EMPTY) | (key == ERASED), EMPTY, ERASED)
        tl.store(index + word(slot, 0, LINES), free, mask=born & lost)
    dropped = tl.where(lost, length, 0).to(tl.int64)
    if splits is None:
        count_up(counts, born & finite, slot != slot, dropped)
    elif tl.max((born | lost).to(tl.int32), axis=0) > 0:
        k = table_of(splits, source, K, ROOM)
        own = counts + TOTALS * k
        tl.atomic_add(own, (born & finite).to(tl.int64), mask=born, sem="relaxed")
        tl.atomic_add(own + 2, dropped, mask=lost, sem="relaxed")
    return tl.where(changes, slot, -1), born & finite


@jit
def _looked_at(
    batch: tl.tuple,
    table: tl.tuple,
    run: tl.tensor,
    values: tl.tensor,
    now: tl.tensor,
    START: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    FORM: tl.constexpr,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    TOTALS: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALL_COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Returns sums of runs, slots that will change (-1 for others), which are new, sources, rows.

    Rows and times are read before the sums, which are loops, so that all of these reads are in
    flight together. New rows are still undefined. The kernel of the first segment determines the
    rows that change and records them for the other segments.
    """
    slots, order, starts, runs, grads, sums, firsts = batch
    index, counts, splits, ids, placed = table
    inside = run < runs
    begin = tl.load(starts + run, mask=inside, other=0)
    length = tl.load(starts + run + 1, mask=inside, other=0) - begin
    slot = tl.load(slots + begin, mask=inside, other=-1).to(tl.int64)
    source = tl.load(order + begin, mask=inside, other=0)
    w = rows_at(values + START, slot, DIM, STRIDE, COLUMNS)
    old = tl.load(index + word(slot, TIMES, LINES), mask=slot >= 0, other=0)
    parts = (order, grads, sums, firsts)
    total = _summed(parts, begin, length, START, DIM, WIDTH, FORM, COLUMNS)
    if START == 0:
        finite = all_finite(total)
        if DIM < WIDTH:
            row = _summed(parts, begin, length, 0, WIDTH, WIDTH, FORM, ALL_COLUMNS)
            finite = all_finite(row)
        key = tl.load(ids + source, mask=inside & ~finite, other=0)
        where = (index, counts, splits)
        slot, born = _settled(
            *(where, slot, old, key, source, length, finite, now, K, ROOM, TOTALS, LINES)
        )
        if DIM < WIDTH:
            tl.store(placed + run, tl.where(born, slot + BORN, slot), mask=inside)
    else:
        told = tl.load(placed + run, mask=inside, other=-1)
        slot, born = tl.where(told >= BORN, told - BORN, told), told >= BORN
    total = tl.where((slot >= 0)[:, None], total, 0.0)  # the others may not be finite
    return total, slot, born, source, w


@jit
def _first_rows(
    draw: tl.tuple,
    source: tl.tensor,
    born: tl.tensor,
    KIND: tl.constexpr,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    START: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns the first values of new rows, each drawn for its table."""
    ids, splits, draws, seed, a, scale = draw
    key = tl.load(ids + source, mask=born, other=0)
    if draws is None:
        return start_rows(key, seed, a, scale, KIND, START, ROWS, COLUMNS)
    else:  # noqa: RET505 (Triton wants both arms)
        seeds, lows, scales = draw_of(draws, table_of(splits, source, K, ROOM))
        return start_rows(key, seeds, lows, scales, KIND, START, ROWS, COLUMNS)


@jit
def _step_runs(
    run: tl.tensor,
    batch: tl.tuple,
    table: tl.tuple,
    draw: tl.tuple,
    memory: tl.tuple,
    pace: tl.tuple,
    RULE: tl.constexpr,
    KIND: tl.constexpr,
    FORM: tl.constexpr,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    TOTALS: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    STATE: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALL_COLUMNS: tl.constexpr,
) -> None:
    """Performs the step of the rows of some runs."""
    values, numbers = memory
    now, rate, at_step = pace
    total, slot, born, source, w = _looked_at(
        *(batch, table, run, values, now, START, DIM, WIDTH, STRIDE, FORM, K, ROOM, TOTALS, LINES),
        *(COLUMNS, ALL_COLUMNS),
    )
    there = slot >= 0
    if tl.max(born.to(tl.int32), axis=0) > 0:
        first = _first_rows(draw, source, born, KIND, K, ROOM, START, ROWS, COLUMNS)
        w = tl.where(born[:, None], first, w)
    states = (values, slot * STRIDE + STATE, there, born, numbers)
    w = stepped(states, w, total, rate, at_step, RULE, DIM, COLUMNS)
    column = tl.arange(0, COLUMNS)[None, :]
    at = slot[:, None] * STRIDE + START + column
    tl.store(values + at, w, mask=there[:, None] & (column < DIM))


@jit(do_not_specialize=["firsts", "room", "seed", "now", "at_step"])
def _step(
    ids: tl.tensor,
    slots: tl.tensor,
    order: tl.tensor,
    starts: tl.tensor,
    runs: tl.tensor,
    base: tl.tensor,
    places: tl.tensor | None,
    rows: tl.tensor | None,
    divisors: tl.tensor | None,
    weights: tl.tensor | None,
    largest: tl.tensor | None,
    room: tl.tensor,
    sums: tl.tensor,
    placed: tl.tensor | None,
    index: tl.tensor,
    values: tl.tensor,
    counts: tl.tensor,
    numbers: tl.tensor,
    splits: tl.tensor | None,
    draws: tl.tensor | None,
    firsts: tl.tensor,
    now: tl.tensor,
    rate: tl.tensor,
    at_step: tl.tensor,
    seed: tl.tensor,
    a: tl.tensor,
    scale: tl.tensor,
    RULE: tl.constexpr,
    KIND: tl.constexpr,
    FORM: tl.constexpr,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    TOTALS: tl.constexpr,
    START: tl.constexpr,
    DIM: tl.constexpr,
    STATE: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALL_COLUMNS: tl.constexpr,
) -> None:
    many = tl.load(runs)
    grads = (base, places, rows, divisors, weights, largest, room)
    batch = (slots, order, starts, many, grads, sums, firsts)
    table = (index, counts, splits, ids, placed)
    draw = (ids, splits, draws, seed, a, scale)
    block = tl.program_id(0) * ROWS
    while block < many:
        _step_runs(
            *(block + tl.arange(0, ROWS), batch, table, draw, (values, numbers)),
            *((now, rate, at_step), RULE, KIND, FORM, K, ROOM, TOTALS, START, DIM, STATE, WIDTH),
            *(STRIDE, LINES, ROWS, COLUMNS, ALL_COLUMNS),
        )
        block += tl.num_programs(0) * ROWS


def step(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    grads: Float32[Tensor, "n dim"] | OutputGradients,
    counts: Int64[Tensor, "3"] | Int64[Tensor, "K 3"],
    parts: Sequence[RowSegment],
    rates: Sequence[float],
    now: int,
    slots: Int64[Tensor, "n"] | Int32[Tensor, "n"] | None = None,
    used: Int64[Tensor, "K"] | None = None,
    splits: Int64[Tensor, "K+1"] | None = None,
    at_step: int = NO_STEP,
) -> None:
    """Performs one step for each id with its summed gradient. Adds to `counts` like `Applied`.

    With several tables, `splits` divides the ids by table, and each table has its counts. An absent
    id is inserted with its first value. `slots` from a lookup of the same ids save the search. A
    sum that is not finite leaves its row unchanged.
    """
    if len(ids):
        batch = runs(table, seat(table, ids, slots, used, splits), ids, counts, splits)
        update(table, ids, batch, grads, counts, parts, rates, now, splits, at_step)


def update(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    batch: Runs,
    grads: Float32[Tensor, "n dim"] | OutputGradients,
    counts: Int64[Tensor, "3"] | Int64[Tensor, "K 3"],
    parts: Sequence[RowSegment],
    rates: Sequence[float],
    now: int,
    splits: Int64[Tensor, "K+1"] | None = None,
    at_step: int = NO_STEP,
) -> None:
    """Performs `step` on ids whose occurrences are in runs.

    Rows with time `NEWBORN` are initialized.
    """
    n = ids.shape[0]
    sums, firsts = sum_long_runs(batch, grads)
    placed = torch.empty_like(ids) if len(parts) > 1 else None
    for part, rate in zip(parts, rates, strict=True):
        tile, programs = step_tile(part.dim if part.start else table.dim, ids.device)
        _step[(min(blocks(n, tile["ROWS"])[0], programs),)](
            *(ids, batch.slots, batch.order, batch.starts, batch.counts),
            *(*arguments(grads), sums, placed),
            *(table.index, table.values, counts, part.numbers, splits, part.draws),
            *(
                firsts,
                now,
                rate,
                at_step,
                signed64(part.first.seed),
                part.first.a,
                part.first.scale,
            ),
            RULE=part.rule,
            KIND=part.first.kind,
            FORM=form_of(grads),
            **several(table.tables),
            TOTALS=counts.stride(0),
            START=part.start,
            DIM=part.dim,
            STATE=part.state,
            WIDTH=table.dim,
            STRIDE=table.stride,
            LINES=table.lines,
            ALL_COLUMNS=columns_of(table.dim),
            **{**tile, "COLUMNS": columns_of(part.dim)},
            enable_fp_fusion=False,
        )
