"""Insertion into a table that may be full: scores, pins, and eviction of the lowest score.

A score word holds the score in 48 bits and, above them, the number of the call that set it, so that
a call does not evict rows that it inserted. In mode "assign" the caller gives the score, such as a
time or a step. In mode "use" the score is the weight of all uses of the row, as in `csrc/evict.h`:
a 31-bit float whose exponent wraps around. Such weights are compared by their distance to `top`,
the largest possible weight.

A resident id is assigned. A new id takes the first free slot, as in `find_or_insert`. If its two
buckets are full, it takes the slot of the row with the smallest score there. Ties go to the lower
lane, then to the first bucket. Pinned rows stay, and so do rows that the same call inserted or
found. If no row may leave, the id is reported as busy.

A program takes a row by swapping its score word, so that no other program takes it too. Score words
of slots without a row, or with an unset row, are negative and are never taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.shapes import Float32, Int8, Int64
from . import layout
from .find import TAKEN, look, own_slot, span_of
from .layout import Arrays
from .lookup import rows_at
from .placement import EMPTY, ERASED, LANES, TIMES, candidates, mix_at, own_place, word
from .toolchain import blocks, jit, several, tl, writer_tile

SCORE = tl.constexpr(layout.SCORE)
MARK = tl.constexpr(layout.MARK)
FRACTION = tl.constexpr(layout.FRACTION)  # bits of a weight
ONE = tl.constexpr(2**layout.FRACTION)
AHEAD = tl.constexpr(layout.AHEAD)


@jit
def worth(words: tl.tensor, top: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """Returns the worth of score words. Rows of smaller worth leave first."""
    score = words & SCORE
    if MODE == "use":
        score = tl.where(score == 0, 0, (score - top - 1) & MARK)
    else:
        tl.static_assert(MODE == "assign")
    return score


@jit
def weights_added(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    """Returns the sum of two weights."""
    ahead = ((one - other) & MARK) <= AHEAD
    larger, smaller = tl.where(ahead, one, other), tl.where(ahead, other, one)
    apart = ((larger >> FRACTION) - (smaller >> FRACTION)) & (MARK >> FRACTION)
    apart = tl.minimum(apart, FRACTION + 2)  # beyond this the smaller weight has no effect
    half = (tl.full(one.shape, 1, tl.int64) << apart) >> 1
    total = ONE + (larger & (ONE - 1)) + ((ONE + (smaller & (ONE - 1)) + half) >> apart)
    carry = total >= 2 * ONE
    total = tl.where(carry, (total + 1) >> 1, total)
    exponent = (larger >> FRACTION) + carry.to(tl.int64)
    added = tl.maximum(((exponent << FRACTION) | (total & (ONE - 1))) & MARK, 1)
    return tl.where((one == 0) | (other == 0), one | other, added)


@jit
def scored(words: tl.tensor, given: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """Returns the scores, without call numbers, of rows with these score words after one more use.

    The word of a new row is 0. In mode "use", `given` is the weight of a use now, or 0 if the write
    is not a use.
    """
    if MODE == "use":
        return weights_added(words & SCORE, given & MARK)
    else:  # noqa: RET505 (Triton wants both arms)
        tl.static_assert(MODE == "assign")
        return given & SCORE


INSERTED = tl.constexpr(layout.INSERTED)
RECLAIMED = tl.constexpr(layout.RECLAIMED)
ASSIGNED = tl.constexpr(layout.ASSIGNED)
EVICTED = tl.constexpr(layout.EVICTED)
BUSY = tl.constexpr(layout.BUSY)
NOT_ASKED = tl.constexpr(layout.NOT_ASKED)
NOBODY = tl.constexpr(2**62)


@dataclass(frozen=True, slots=True, eq=False)
class InsertResult:
    """What happened to each id, and which row it evicted."""

    codes: Int8[Tensor, "n"]  # INSERTED, RECLAIMED, ASSIGNED, EVICTED, BUSY or NOT_ASKED
    slots: Int64[Tensor, "n"]  # -1 if busy or not asked
    victims: Int64[Tensor, "n"]  # the evicted id, if any
    victim_scores: Int64[Tensor, "n"]  # the score of the evicted row
    victim_rows: Float32[Tensor, "n width"] | None  # the evicted row; undefined if none


@jit
def _candidates_of(
    table: tl.tuple,
    bucket: tl.tensor,
    asked: tl.tensor,
    call: tl.tensor,
    top: tl.tensor,
    BEHIND: tl.constexpr,
    MODE: tl.constexpr,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns, per bucket, the smallest worth of a removable row with its lane, and its word."""
    index, pins = table
    lanes = tl.arange(0, LANES)[None, :]
    line = bucket[:, None] * (LINES * LANES) + (LINES - 1) * LANES + lanes
    words = tl.load(index + line, mask=asked[:, None], other=-1, volatile=True)
    free = (words >= 0) & ((words >> 48) != call[:, None])
    if pins is not None:
        held = tl.load(pins + bucket[:, None] * LANES + lanes, mask=asked[:, None], other=0)
        free = free & (held == 0)
    rank = worth(words, top, MODE) * (2 * LANES) + BEHIND * LANES + lanes
    best = tl.min(tl.where(free, rank, NOBODY), axis=1)
    return best, tl.max(tl.where(rank == best[:, None], words, -1), axis=1)


@jit
def _take(
    table: tl.tuple,
    ids: tl.tensor,
    todo: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    call: tl.tensor,
    top: tl.tensor,
    MODE: tl.constexpr,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Tries once to take the slot of the row with the smallest score.

    Returns the slot or -1, the id that had it, its score word, and whether no row may leave.
    """
    index, pins = table
    one, word_one = _candidates_of(table, first, todo, call, top, 0, MODE, LINES)
    two, word_two = _candidates_of(table, second, todo, call, top, 1, MODE, LINES)
    best, seen = tl.minimum(one, two), tl.where(one < two, word_one, word_two)
    alone = todo & (best == NOBODY)
    tries = todo & ~alone
    lane = best % (2 * LANES)
    slot = tl.where(lane < LANES, first * LANES + lane, (second - 1) * LANES + lane)
    # The swap has no mask: lanes without work swap a value for itself, in the line of keys that
    # they have just read. At a single shared address they would queue.
    nothing = tl.full(slot.shape, -2, tl.int64)
    at = index + tl.where(tries, word(slot, LINES - 1, LINES), first * (LINES * LANES))
    mine = tl.where(tries, (call << 48) | SCORE, nothing)
    expected = tl.where(tries, seen, nothing)
    won = tries & (tl.atomic_cas(at, expected, mine, sem="relaxed") == seen)
    if pins is not None:
        held = won & (tl.atomic_add(pins + slot, 0, mask=won, sem="relaxed") != 0)
        tl.store(at, seen, mask=held)
        won = won & ~held
    victim = tl.atomic_xchg(index + word(slot, 0, LINES), ids, mask=won, sem="relaxed")
    return tl.where(won, slot, -1), victim, seen, alone


@jit
def _assigned(
    index: tl.tensor,
    held: tl.tensor,
    asked: tl.tensor,
    first: tl.tensor,
    given: tl.tensor,
    call: tl.tensor,
    MODE: tl.constexpr,
    LINES: tl.constexpr,
) -> tl.tensor:
    """Scores rows that were found once more. Returns which of them are not being evicted."""
    at = index + word(held, LINES - 1, LINES)
    old = tl.atomic_or(at, 0, mask=asked, sem="relaxed")
    stays = asked & (old != ((call << 48) | SCORE))
    new = (call << 48) | scored(tl.where(old < 0, 0, old), given, MODE)
    nothing = tl.full(held.shape, -2, tl.int64)
    at = tl.where(stays, at, index + first * (LINES * LANES))
    expected, new = tl.where(stays, old, nothing), tl.where(stays, new, nothing)
    seen = tl.atomic_cas(at, expected, new, sem="relaxed")
    return stays & (seen == old)


@jit
def place_or_evict(
    table: tl.tuple,
    ids: tl.tensor,
    todo: tl.tensor,
    span: tl.tuple,
    given: tl.tensor,
    call: tl.tensor,
    top: tl.tensor,
    MODE: tl.constexpr,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Returns slot, code, evicted id and its score word for each id with `todo`."""
    index, _ = table
    base, buckets, mix = span
    first, second = candidates(mix, ids, base, buckets)
    special, own = own_place(ids, base, buckets)
    stored = tl.where(special, tl.full(ids.shape, TAKEN, tl.int64), ids)
    empty = tl.full(ids.shape, EMPTY, tl.int64)
    erased = tl.full(ids.shape, ERASED, tl.int64)
    slot = tl.full(ids.shape, -1, tl.int64)
    code = tl.where(todo, BUSY, NOT_ASKED)
    victim, left = tl.zeros_like(ids), tl.zeros_like(ids)
    while tl.max(todo.to(tl.int32), axis=0) > 0:
        held, free, was_erased = look(index, ids, todo & ~special, first, second, LINES)
        held = tl.where(special, -1, held)
        free = tl.where(special, own, free)  # the swap shows whether it is free
        was_erased = was_erased & ~special
        tries = todo & (held < 0) & (free >= 0)
        if tl.max(tries.to(tl.int32), axis=0) > 0:
            place = tl.where(tries, free, first * LANES)
            vacant = tl.where(was_erased, erased, empty)
            expected = tl.where(tries, vacant, stored)
            old = tl.atomic_cas(index + word(place, 0, LINES), expected, stored, sem="relaxed")
            won = tries & (old == vacant)
            score = (call << 48) | scored(tl.zeros_like(ids), given, MODE)
            tl.store(index + word(place, LINES - 1, LINES), score, mask=won)
            slot = tl.where(won, place, slot)
            code = tl.where(won, tl.where(was_erased, RECLAIMED, INSERTED), code)
            held = tl.where(tries & (old == stored), place, held)
            todo = todo & ~won
        found = todo & (held >= 0)
        if tl.max(found.to(tl.int32), axis=0) > 0:
            kept = _assigned(index, held, found, first, given, call, MODE, LINES)
            slot, code = tl.where(kept, held, slot), tl.where(kept, ASSIGNED, code)
            todo = todo & ~kept
        full = todo & (held < 0) & (free < 0)
        if tl.max(full.to(tl.int32), axis=0) > 0:
            took, gone, seen, alone = _take(table, ids, full, first, second, call, top, MODE, LINES)
            won = took >= 0
            score = (call << 48) | scored(tl.zeros_like(ids), given, MODE)
            tl.store(index + word(took, LINES - 1, LINES), score, mask=won)
            slot, code = tl.where(won, took, slot), tl.where(won, EVICTED, code)
            victim, left = tl.where(won, gone, victim), tl.where(won, seen, left)
            todo = todo & ~won & ~alone
    return slot, code, victim, left


@jit(do_not_specialize=["n", "buckets", "now", "call", "top"])
def _insert_and_evict(
    ids: tl.tensor,
    scores: tl.tensor,
    rows: tl.tensor | None,
    used: tl.tensor | None,
    index: tl.tensor,
    values: tl.tensor,
    pins: tl.tensor | None,
    spans: tl.tensor | None,
    splits: tl.tensor | None,
    codes: tl.tensor,
    slots: tl.tensor,
    victims: tl.tensor,
    victim_scores: tl.tensor,
    victim_rows: tl.tensor | None,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    call: tl.tensor,
    top: tl.tensor,
    MODE: tl.constexpr,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    base, count, live = span_of((spans, splits), used, i, n, buckets, K, ROOM)
    key = tl.load(ids + i, mask=live, other=0)
    given = tl.load(scores + i, mask=live, other=0)
    call, mix = tl.zeros_like(key) + call, mix_at(index, buckets, LINES)
    slot, code, victim, left = place_or_evict(
        *((index, pins), key, live, (base, count, mix), given, call, top.to(tl.int64)),
        *(MODE, LINES),
    )
    tl.store(codes + i, code.to(tl.int8), mask=i < n)
    tl.store(slots + i, own_slot(slot, base), mask=i < n)
    tl.store(victims + i, victim, mask=i < n)
    tl.store(victim_scores + i, left & SCORE, mask=i < n)
    if LINES > 2:
        tl.store(index + word(slot, TIMES, LINES), tl.zeros_like(slot) + now, mask=slot >= 0)
    if rows is not None:
        column = tl.arange(0, COLUMNS)[None, :]
        gone = code == EVICTED
        row = rows_at(values, tl.where(gone, slot, -1), WIDTH, STRIDE, COLUMNS)
        inside = column < WIDTH
        tl.store(victim_rows + i[:, None] * WIDTH + column, row, mask=gone[:, None] & inside)
        here = (slot >= 0)[:, None] & inside
        new = tl.load(rows + i[:, None] * WIDTH + column, mask=here, other=0.0)
        tl.store(values + slot[:, None] * STRIDE + column, new, mask=here)


def insert_and_evict(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    scores: Int64[Tensor, "n"],
    rows: Float32[Tensor, "n width"] | None = None,
    *,
    call: int,
    now: int = 0,
    mode: str = "assign",
    top: int = 0,
    used: Int64[Tensor, "K"] | None = None,
    splits: Int64[Tensor, "K+1"] | None = None,
) -> InsertResult:
    """Gives every id a row with this score, or reports that its buckets are busy.

    The ids must be distinct. `rows`, which may include states, are written, and evicted rows are
    returned. `call` is a number in 1..2**15-1 that recent calls did not use: rows that carry it
    stay. `top` is the largest possible weight in mode "use". Slots of several tables are numbered
    within each table, as in `find`.
    """
    n = len(ids)
    width = 0 if rows is None else rows.shape[1]
    out = InsertResult(
        torch.empty_like(ids, dtype=torch.int8),
        torch.empty_like(ids),
        torch.empty_like(ids),
        torch.empty_like(ids),
        None if rows is None else torch.empty_like(rows),
    )
    if n:
        tile = writer_tile(width or 64)
        _insert_and_evict[blocks(n, tile["ROWS"])](
            *(ids, scores, rows, used, table.index, table.values, table.pins, table.spans, splits),
            *(out.codes, out.slots, out.victims, out.victim_scores, out.victim_rows),
            *(n, table.buckets, now, call, top),
            MODE=mode,
            **several(table.tables),
            WIDTH=width,
            STRIDE=table.stride,
            LINES=table.lines,
            **tile,
        )
    return out


_ROWS = 256


@jit(do_not_specialize=["n", "by"])
def _pin(
    slots: tl.tensor, pins: tl.tensor, n: tl.tensor, by: tl.tensor, ROWS: tl.constexpr
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1)
    more = tl.zeros_like(slot).to(tl.int32) + by
    tl.atomic_add(pins + slot, more, mask=slot >= 0, sem="relaxed")


def pin(
    table: Arrays,
    slots: Int64[Tensor, "n"],
    by: int = 1,
    splits: Int64[Tensor, "K+1"] | None = None,
) -> None:
    """Pins the rows in these slots once more, or once less with `by=-1`. -1 is not a slot.

    With several tables, `splits` divides the slots by table.
    """
    if table.pins is None:
        raise InputError("the table cannot pin rows; make it with Arrays.make(..., pinned=True).")
    slots = table.numbered(slots, splits)
    if len(slots):
        _pin[blocks(len(slots), _ROWS)](slots, table.pins, len(slots), by, ROWS=_ROWS)


@jit(do_not_specialize=["n"])
def _touch(
    slots: tl.tensor,
    scores: tl.tensor,
    index: tl.tensor,
    n: tl.tensor,
    MODE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1)
    there = slot >= 0
    given = tl.load(scores + i, mask=there, other=0)
    at = index + word(slot, LINES - 1, LINES)
    old = tl.load(at, mask=there, other=0)
    new = scored(tl.where(old < 0, 0, old), given, MODE)
    tl.store(at, new, mask=there)


def touch(
    table: Arrays,
    slots: Int64[Tensor, "n"],
    scores: Int64[Tensor, "n"],
    mode: str = "assign",
    splits: Int64[Tensor, "K+1"] | None = None,
) -> None:
    """Scores the rows in these slots for one more use.

    The slots must be distinct; -1 is not a slot.

    With several tables, `splits` divides the slots by table.
    """
    slots = table.numbered(slots, splits)
    if len(slots):
        _touch[blocks(len(slots), _ROWS)](
            *(slots, scores, table.index, len(slots)),
            MODE=mode,
            LINES=table.lines,
            ROWS=_ROWS,
        )
