"""Selects rows of caches that were not used recently, to be written back and erased."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Bool, Int32, Int64
from . import layout
from .find import table_of
from .layout import Arrays
from .placement import ERASED, LANES, TIMES, candidates, mix_at, word
from .toolchain import blocks, jit, several, tl

NEVER = 2**31 - 1
"""The time of last use of a slot without a row: later than every use."""
_NEVER = tl.constexpr(NEVER)
NEWBORN = tl.constexpr(layout.NEWBORN)
CROWDED = 64
"""The most keys of a table for which `single_out` selects rows."""
_BUCKETS = 32  # per program


@jit
def _oldest(
    used: tl.tensor, spans: tl.tensor, ranks: tl.tensor, out: tl.tensor, SAMPLE: tl.constexpr
) -> None:
    k = tl.program_id(0)
    first = tl.load(spans + 2 * k) * LANES
    slots = tl.load(spans + 2 * k + 1) * LANES
    at = tl.arange(0, SAMPLE).to(tl.int64)
    place = first + at * (slots // SAMPLE | 1) % slots  # an odd step, so that every lane is sampled
    when = tl.load(used + place, mask=at < slots, other=_NEVER)
    rank = tl.load(ranks + k)
    low, high = tl.full((), 0, tl.int64), tl.full((), _NEVER, tl.int64)
    while low < high:  # the least time such that more than `rank` slots were last used up to it
        middle = (low + high) // 2
        enough = tl.sum((when <= middle).to(tl.int32), axis=0) > rank
        low, high = tl.where(enough, low, middle + 1), tl.where(enough, middle, high)
    tl.store(out + k, low.to(tl.int32))


def oldest(
    table: Arrays, used: Int32[Tensor, "slots"], ranks: Int64[Tensor, "K"], *, sample: int
) -> Int32[Tensor, "K"]:
    """Returns for each table the time of last use with this rank in a sorted sample of its slots.

    Rank -1 gives 0. The sample has `sample` slots, a power of two, or all slots if there are fewer.
    """
    assert table.spans is not None
    out = torch.empty(table.tables, dtype=torch.int32, device=used.device)
    _oldest[(table.tables,)](used, table.spans, ranks, out, SAMPLE=sample, num_warps=16)
    return out


@jit
def _places(chosen: tl.tensor, counter: tl.tensor, SLOTS: tl.constexpr) -> tl.tensor:
    """Returns consecutive numbers for the chosen elements, from a shared counter."""
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
    TIME: tl.constexpr,
    LINES: tl.constexpr,
    BUCKETS: tl.constexpr,
) -> None:
    k = tl.program_id(1).to(tl.int64)
    # Programs that run late find enough rows chosen. So start in another part of the table each
    # time.
    block = ((tl.program_id(0) + turn) % programs).to(tl.int64)
    base, count = tl.load(spans + 2 * k), tl.load(spans + 2 * k + 1)
    bucket = block * BUCKETS + tl.arange(0, BUCKETS)
    lanes = tl.arange(0, LANES)[None, :]
    # Includes the two slots of special ids, which stay.
    inside = (bucket < count)[:, None] | ((bucket == count)[:, None] & (lanes < 2))
    slot = (base + bucket)[:, None] * LANES + lanes
    when = tl.load(used + slot, mask=inside, other=_NEVER)
    taken = when != _NEVER
    ordinary = taken & (bucket < count)[:, None]
    when = tl.where(ordinary, when, _NEVER)
    # In a table that must free slots, also choose a row of each nearly full bucket. Otherwise a new
    # row of that bucket would repeatedly find no free slot.
    age = tl.load(oldest + k)
    full = (tl.sum(ordinary.to(tl.int32), axis=1) >= LANES - 1) & (age > 0)
    lane = tl.argmin(when, axis=1)
    old = full[:, None] & (lanes == lane[:, None]) | (when <= age)
    chosen = ordinary & old & (when <= limit)
    start, stop = tl.load(starts + k), tl.load(starts + k + 1)
    place = start + _places(chosen, counts + 3 * k, BUCKETS * LANES)
    chosen = chosen & (place < stop)
    tl.store(going + place, slot, mask=chosen)
    rows = tl.sum(tl.sum(taken.to(tl.int64), axis=1), axis=0)
    tl.atomic_add(counts + 3 * k + 2, rows, sem="relaxed")
    chosen = chosen & tl.load(changed + slot, mask=chosen, other=0).to(tl.int1)
    place = start + _places(chosen, counts + 3 * k + 1, BUCKETS * LANES)
    tl.store(dirty + place, slot, mask=chosen)
    at = (base + bucket)[:, None] * (LINES * LANES) + lanes
    tl.store(ids + place, tl.load(index + at, mask=chosen, other=0), mask=chosen)
    time = tl.load(index + at + TIMES * LANES, mask=chosen, other=0)
    tl.store(times + place, time & TIME, mask=chosen)


@dataclass(frozen=True, slots=True, eq=False)
class EvictionCandidates:
    """Rows that may leave, as slots from each table's start on; -1 in unused entries.

    Slots are numbered over all tables. Dirty rows are listed again in `dirty` with ids and times.
    `counts` holds per table the number of chosen rows (possibly above the limit), the number of
    dirty rows among those listed, and the number of resident rows. No chosen row was used after
    `limit`.
    """

    starts: Int64[Tensor, "K+1"]
    limit: int
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
) -> EvictionCandidates:
    """Selects rows last used up to `oldest` of their table, and none used after `limit`.

    Unless `oldest` is 0, the least recently used row of each nearly full bucket is selected too.
    Each table has the entries given by `starts`, `room` in total. If there are too many rows,
    `turn` decides which ones are taken. Rows of the two special ids are never selected. `buckets`
    is the size of the largest table. A slot counts as taken if it was ever used, because reading
    the keys would take three times as long.
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
        TIME=table.bits(layout.TIMES),
        LINES=table.lines,
        BUCKETS=_BUCKETS,
    )
    return EvictionCandidates(starts, limit, going, dirty, ids, times, counts)


@jit(do_not_specialize=["limit"])
def _single_out(
    keys: tl.tensor,
    splits: tl.tensor,
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
    TIME: tl.constexpr,
    LINES: tl.constexpr,
    MOST: tl.constexpr,
) -> None:
    k = tl.program_id(0).to(tl.int64)
    base, count = tl.load(spans + 2 * k), tl.load(spans + 2 * k + 1)
    start, stop = tl.load(starts + k), tl.load(starts + k + 1)
    first, last = tl.load(splits + k), tl.load(splits + k + 1)
    last = tl.where(tl.load(oldest + k) > 0, first, last)
    chosen, written = tl.load(counts + 3 * k), tl.load(counts + 3 * k + 1)
    number, lane = tl.arange(0, MOST), tl.arange(0, 2 * LANES)
    taken = tl.full((MOST,), -1, tl.int64)  # slots chosen for earlier keys
    i = first
    while i < last:
        one, two = candidates(mix_at(index, base + count, LINES), tl.load(keys + i), base, count)
        slot = tl.where(lane < LANES, one, two) * LANES + lane % LANES
        when = tl.load(used + slot)
        room = tl.max((when == _NEVER).to(tl.int32), axis=0)
        others = tl.max((slot[:, None] == taken[None, :]).to(tl.int32), axis=1)
        when = tl.where((others == 0) & (when <= limit), when, _NEVER)
        goes = (room == 0) & (tl.min(when, axis=0) != _NEVER) & (start + chosen < stop)
        mine = tl.max(tl.where(lane == tl.argmin(when, axis=0), slot, -1), axis=0)
        taken = tl.where(goes & (number == i - first), mine, taken)
        tl.store(going + start + chosen, mine, mask=goes)
        write = goes & tl.load(changed + mine, mask=goes, other=0).to(tl.int1)
        place = start + written
        tl.store(dirty + place, mine, mask=write)
        key = tl.load(index + word(mine, 0, LINES), mask=write, other=0)
        tl.store(ids + place, key, mask=write)
        time = tl.load(index + word(mine, TIMES, LINES), mask=write, other=0)
        tl.store(times + place, time & TIME, mask=write)
        chosen += goes.to(tl.int64)
        written += write.to(tl.int64)
        i += 1
    tl.store(counts + 3 * k, chosen)
    tl.store(counts + 3 * k + 1, written)


def single_out(
    table: Arrays,
    chosen: EvictionCandidates,
    keys: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    oldest: Int32[Tensor, "K"],
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"],
) -> None:
    """Adds a row to the `chosen` ones for each key whose two buckets are full.

    It is the least recently used row there, a different one for every key. At most `CROWDED`
    distinct keys per table are handled. Tables with a nonzero `oldest` are skipped, because such
    rows were chosen already.
    """
    assert table.spans is not None
    _single_out[(table.tables,)](
        *(keys, splits, table.index, used, changed.view(torch.int8), table.spans, oldest),
        *(chosen.starts, chosen.counts, chosen.going, chosen.dirty, chosen.ids, chosen.times),
        chosen.limit,
        TIME=table.bits(layout.TIMES),
        LINES=table.lines,
        MOST=CROWDED,
        num_warps=1,
    )


@jit(do_not_specialize=["n"])
def _clean(slots: tl.tensor, changed: tl.tensor, n: tl.tensor, ROWS: tl.constexpr) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1)
    tl.store(changed + slot, tl.full((ROWS,), 0, tl.int8), mask=slot >= 0)


def clean(chosen: EvictionCandidates, changed: Bool[Tensor, "slots"]) -> None:
    """Marks the rows that were listed as dirty as clean. They are being written back."""
    n = len(chosen.dirty)
    _clean[blocks(n, 512)](chosen.dirty, changed.view(torch.int8), n, ROWS=512)


@jit(do_not_specialize=["n", "limit"])
def _take_out(
    slots: tl.tensor,
    starts: tl.tensor,
    index: tl.tensor,
    used: tl.tensor,
    changed: tl.tensor,
    left: tl.tensor,
    n: tl.tensor,
    limit: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1)
    # A row that was used or changed since stays. The slot may also hold another row by now.
    gone = (slot >= 0) & (tl.load(used + slot, mask=slot >= 0, other=_NEVER) <= limit)
    gone = gone & (tl.load(changed + slot, mask=gone, other=1) == 0)
    tl.store(used + slot, tl.full((ROWS,), _NEVER, tl.int32), mask=gone)
    tl.store(index + word(slot, 0, LINES), tl.full((ROWS,), ERASED, tl.int64), mask=gone)
    for line in tl.static_range(1, LINES):  # pyright: ignore[reportGeneralTypeIssues]
        nothing = tl.full((ROWS,), NEWBORN, tl.int64)
        tl.store(index + word(slot, line, LINES), nothing, mask=gone)
    k = tl.where(gone, table_of(starts, i, K, ROOM), 0)
    tl.atomic_add(left + k, tl.full((ROWS,), 1, tl.int64), mask=gone, sem="relaxed")


def take_out(
    table: Arrays,
    chosen: EvictionCandidates,
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"],
    left: Int64[Tensor, "K"],
) -> None:
    """Erases the chosen rows that were neither used nor changed since.

    `left` counts them per table.
    """
    n = len(chosen.going)
    _take_out[blocks(n, 128)](
        *(chosen.going, chosen.starts, table.index, used, changed.view(torch.int8), left),
        *(n, chosen.limit),
        **several(table.tables),
        LINES=table.lines,
        ROWS=128,
    )


_ROWS = 512


@jit(do_not_specialize=["n", "now"])
def _mark(
    slots: tl.tensor,
    used: tl.tensor,
    changed: tl.tensor | None,
    n: tl.tensor,
    now: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1).to(tl.int64)
    tl.store(used + slot, tl.zeros((ROWS,), tl.int32) + now, mask=slot >= 0)
    if changed is not None:
        tl.store(changed + slot, tl.full((ROWS,), 1, tl.int8), mask=slot >= 0)


def mark(
    slots: Int32[Tensor, "n"],
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"] | None,
    now: int,
) -> None:
    """Sets `used` of these slots to `now`, and `changed` to True if given.

    Negative slots are skipped.
    """
    n = len(slots)
    if n:
        flags = None if changed is None else changed.view(torch.int8)
        _mark[blocks(n, _ROWS)](slots, used, flags, n, now, ROWS=_ROWS)
