"""Makes room for ids whose two buckets are full: a row there moves to its own other bucket.

Buckets of 16 that are chosen from two fill to about 0.85 before an id finds both full, and then
there is nearly always a row in them that would fit elsewhere. Moving one lets tables fill to 0.98.
A row that is pinned, or not set yet, stays.

Slots of rows that moved are out of date. Programs move rows at once: a program first swaps the
row's word of times (and of scores), so that nobody else moves it, then takes the free place.
"""

from __future__ import annotations

from .find import span_of
from .placement import EMPTY, ERASED, LANES, candidates, word
from .toolchain import jit, tl

MOVING = tl.constexpr(-3)  # the word of a row on its way: nobody takes it
_SCAN = 1024  # places that one program looks through
_TRIES = tl.constexpr(4)


@jit
def _elsewhere(
    index: tl.tensor,
    pins: tl.tensor | None,
    bucket: tl.tensor,
    base: tl.tensor,
    buckets: tl.tensor,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The first lane of a bucket whose row fits into its other bucket, or LANES; and where to."""
    lanes = tl.arange(0, LANES)
    key = tl.load(index + bucket * (LINES * LANES) + lanes, volatile=True)
    state = tl.load(index + bucket * (LINES * LANES) + (LINES - 1) * LANES + lanes, volatile=True)
    may = (state >= 0) & (key != EMPTY) & (key != ERASED)
    if pins is not None:
        may = may & (tl.load(pins + bucket * LANES + lanes) == 0)
    first, second = candidates(key, base, buckets)
    other = tl.where(first == bucket, second, first)
    line = index + other[:, None] * (LINES * LANES) + lanes[None, :]
    there = tl.load(line, mask=may[:, None], other=0, volatile=True)
    free = (there == EMPTY) | (there == ERASED)
    lane = tl.min(tl.where(free, lanes[None, :], LANES), axis=1)
    best = tl.min(tl.where(may & (lane < LANES), lanes, LANES), axis=0)
    target = tl.max(tl.where(lanes == best, other * LANES + lane, -1), axis=0)
    return best, target


@jit
def _copied(
    table: tl.tuple,
    source: tl.tensor,
    target: tl.tensor,
    moves: tl.tensor,
    LINES: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Copies a row and the words between its key and its last one."""
    index, values = table
    for line in tl.static_range(1, LINES - 1):
        between = tl.load(index + word(source, line, LINES), mask=moves, other=0)
        tl.store(index + word(target, line, LINES), between, mask=moves)
    for part in tl.static_range((STRIDE + COLUMNS - 1) // COLUMNS):
        column = part * COLUMNS + tl.arange(0, COLUMNS)
        inside = moves & (column < STRIDE)
        row = tl.load(values + source * STRIDE + column, mask=inside, other=0.0)
        tl.store(values + target * STRIDE + column, row, mask=inside)


@jit
def _moved_out(
    table: tl.tuple,
    pins: tl.tensor | None,
    id_: tl.tensor,
    span: tl.tuple,
    LINES: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """The slot that an id got because a row moved out of it, or -1 after some tries."""
    index, _ = table
    base, buckets = span
    first, second = candidates(id_, base, buckets)
    slot = first * 0 - 1
    tries = tl.full((), 0, tl.int32)
    while (slot < 0) & (tries < 2 * _TRIES):
        bucket = tl.where(tries % 2 == 0, first, second)
        lane, target = _elsewhere(index, pins, bucket, base, buckets, LINES)
        tries += 1
        if lane < LANES:
            source = bucket * LANES + lane
            last = index + word(source, LINES - 1, LINES)
            held = tl.atomic_add(last, 0)
            mine = (held >= 0) & (tl.atomic_cas(last, held, held * 0 + MOVING) == held)
            if mine:
                key = tl.atomic_add(index + word(source, 0, LINES), 0)
                one, two = candidates(key, base, buckets)
                here, there = source // LANES, target // LANES
                fits = ((one == here) & (two == there)) | ((one == there) & (two == here))
                place = index + word(target, 0, LINES)
                vacant = tl.atomic_add(place, 0)
                fits = fits & ((vacant == EMPTY) | (vacant == ERASED))
                old = tl.atomic_cas(place, tl.where(fits, vacant, key), key)
                moves = fits & (old == vacant)
                _copied(table, source, target, moves, LINES, STRIDE, COLUMNS)
                tl.debug_barrier()
                tl.store(index + word(target, LINES - 1, LINES), held, mask=moves)
                tl.store(index + word(source, 0, LINES), id_, mask=moves)
                tl.store(last, tl.where(moves, held * 0 - 1, held))
                slot = tl.where(moves, source, slot)
    return slot


@jit(do_not_specialize=["n", "buckets"])
def _displace(
    ids: tl.tensor,
    places: tl.tensor,
    index: tl.tensor,
    values: tl.tensor,
    pins: tl.tensor | None,
    spans: tl.tensor | None,
    splits: tl.tensor | None,
    moved: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    LINES: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCAN: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * SCAN + tl.arange(0, SCAN)
    place = tl.load(places + at, mask=at < n, other=0)
    left = tl.sum((place < -1).to(tl.int32), axis=0)
    after = tl.program_id(0).to(tl.int64) * SCAN - 1
    while left > 0:
        i = tl.min(tl.where((place < -1) & (at > after), at, n.to(tl.int64)), axis=0)
        position = i + tl.zeros((1,), tl.int64)
        base, count, _ = span_of((spans, splits), None, position, n, buckets, K, ROOM)
        base = tl.max(base + tl.zeros((1,), tl.int64), axis=0)
        count = tl.max(count + tl.zeros((1,), tl.int64), axis=0)
        id_ = tl.load(ids + i)
        # Another occurrence of the id, or another program's move, may have made room before.
        slot = _moved_out((index, values), pins, id_, (base, count), LINES, STRIDE, COLUMNS)
        if slot >= 0:
            tl.store(places + i, slot.to(tl.int32))
            tl.atomic_add(moved, 1)
        after = i
        left -= 1
