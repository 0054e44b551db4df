"""Chooses rows of several caches that were not used for long, and takes them out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Bool, Int32, Int64
from . import layout
from .layout import Arrays
from .placement import EMPTY, ERASED, LANES, TIMES, word
from .toolchain import blocks, jit, tl

NEVER = 2**31 - 1
"""When a slot without a row was used: after every use."""
_NEVER = tl.constexpr(NEVER)
NEWBORN = tl.constexpr(layout.NEWBORN)
SCORE = tl.constexpr(layout.SCORE)
_BUCKETS = 32  # of a program


@jit
def _places(chosen: tl.tensor, counter: tl.tensor, SLOTS: tl.constexpr) -> tl.tensor:
    """Numbers for what is chosen, from a counter on that all programs share."""
    flat = tl.reshape(chosen.to(tl.int64), (SLOTS,))
    first = tl.atomic_add(counter, tl.sum(flat, axis=0), sem="relaxed")
    return tl.reshape(first + tl.cumsum(flat, axis=0) - flat, chosen.shape)


@jit(do_not_specialize=["limit", "turn", "programs"])
def _choose_old(
    index: tl.tensor,
    used: tl.tensor,
    changed: tl.tensor,
    spans: tl.tensor,
    oldest: tl.tensor,
    starts: tl.tensor,
    counts: tl.tensor,
    going: tl.tensor,
    dirty: tl.tensor,
    ids: tl.tensor,
    times: tl.tensor,
    limit: tl.tensor,
    turn: tl.tensor,
    programs: tl.tensor,
    LINES: tl.constexpr,
    BUCKETS: tl.constexpr,
) -> None:
    k = tl.program_id(1).to(tl.int64)
    # Who comes late finds that enough are chosen: another part of the table each time.
    block = ((tl.program_id(0) + turn) % programs).to(tl.int64)
    base, count = tl.load(spans + 2 * k), tl.load(spans + 2 * k + 1)
    bucket = block * BUCKETS + tl.arange(0, BUCKETS)
    inside = (bucket <= count)[:, None]  # with the two places of special ids, which stay
    lanes = tl.arange(0, LANES)[None, :]
    slot = (base + bucket)[:, None] * LANES + lanes
    at = (base + bucket)[:, None] * (LINES * LANES) + lanes
    key = tl.load(index + at, mask=inside, other=EMPTY)
    taken = inside & (key != EMPTY) & (key != ERASED)
    ordinary = taken & (bucket < count)[:, None]
    when = tl.load(used + slot, mask=ordinary, other=_NEVER)
    # One of each bucket with hardly any room: else a new row that belongs there would find none,
    # again and again.
    full = tl.sum(ordinary.to(tl.int32), axis=1) >= LANES - 1
    lane = tl.argmin(when, axis=1)
    old = full[:, None] & (lanes == lane[:, None]) | (when <= tl.load(oldest + k))
    chosen = ordinary & old & (when <= limit)
    start, stop = tl.load(starts + k), tl.load(starts + k + 1)
    place = start + _places(chosen, counts + 3 * k, BUCKETS * LANES)
    chosen = chosen & (place < stop)
    tl.store(going + place, slot, mask=chosen)
    stay = tl.sum(tl.sum((taken & ~chosen).to(tl.int64), axis=1), axis=0)
    tl.atomic_add(counts + 3 * k + 2, stay, sem="relaxed")
    chosen = chosen & tl.load(changed + slot, mask=chosen, other=0).to(tl.int1)
    place = start + _places(chosen, counts + 3 * k + 1, BUCKETS * LANES)
    tl.store(dirty + place, slot, mask=chosen)
    tl.store(ids + place, key, mask=chosen)
    time = tl.load(index + at + TIMES * LANES, mask=chosen, other=0)
    tl.store(times + place, time & SCORE, mask=chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Rows that may leave, from the start of each table's room on: slots, -1 where there is none.

    They are numbered through all tables; those that were changed come once more, with ids and
    times. Of each table `counts` has how many were chosen (maybe more than its room), how many of
    those in its room were changed, and how many rows it has beside them.
    """

    going: Int64[Tensor, "room"]
    dirty: Int64[Tensor, "room"]
    ids: Int64[Tensor, "room"]
    times: Int64[Tensor, "room"]
    counts: Int64[Tensor, "K 3"]


def choose_old(
    table: Arrays,
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"],
    oldest: Int32[Tensor, "K"],
    starts: Int64[Tensor, "K+1"],
    *,
    room: int,
    buckets: int,
    limit: int,
    turn: int,
) -> Chosen:
    """Rows last used up to `oldest` of their table, none that was used after `limit`.

    Of a nearly full bucket one is chosen, too. As many are as `starts` have room for, of `room` in
    all; which ones then, depends on the `turn`. The rows of the two ids that look like free places
    are not. The largest table has so many `buckets`.
    """
    assert table.spans is not None
    device = table.index.device
    going, dirty = torch.full((2, room), -1, dtype=torch.int64, device=device)
    ids, times = torch.empty((2, room), dtype=torch.int64, device=device)
    counts = torch.zeros(table.tables, 3, dtype=torch.int64, device=device)
    programs = -(-(buckets + 1) // _BUCKETS)
    _choose_old[(programs, table.tables)](
        *(table.index, used, changed.view(torch.int8), table.spans, oldest, starts, counts),
        *(going, dirty, ids, times, limit, turn, programs),
        LINES=table.lines,
        BUCKETS=_BUCKETS,
    )
    return Chosen(going, dirty, ids, times, counts)


@jit(do_not_specialize=["n"])
def _take_out(
    slots: tl.tensor,
    index: tl.tensor,
    used: tl.tensor,
    changed: tl.tensor,
    n: tl.tensor,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1)
    gone = slot >= 0
    tl.store(changed + slot, tl.full((ROWS,), 0, tl.int8), mask=gone)
    tl.store(used + slot, tl.full((ROWS,), _NEVER, tl.int32), mask=gone)
    tl.store(index + word(slot, 0, LINES), tl.full((ROWS,), ERASED, tl.int64), mask=gone)
    for line in tl.static_range(1, LINES):  # pyright: ignore[reportGeneralTypeIssues]
        nothing = tl.full((ROWS,), NEWBORN, tl.int64)
        tl.store(index + word(slot, line, LINES), nothing, mask=gone)


def take_out(
    table: Arrays,
    slots: Int64[Tensor, "n"],
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"],
) -> None:
    """The rows in these slots, numbered through all tables, leave; -1 is none."""
    _take_out[blocks(len(slots), 128)](
        *(slots, table.index, used, changed.view(torch.int8), len(slots)),
        LINES=table.lines,
        ROWS=128,
    )
