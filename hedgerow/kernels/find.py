"""Finds the slots of ids, and assigns free slots to new ids.

An id may be in one of 2 x LANES slots, in a fixed order: the home lanes of its first bucket, those
of its second bucket, then the other lanes of both in turn. It takes the first free slot of that
order, by compare-and-swap. Slots never become free while this runs. So a program that inserts the
same id at the same time either finds it on the way or loses the swap for that slot and sees it
there: every id gets one slot. An id is refused if all its slots are taken, and then by every
program.

The slot of an erased id can be reused but does not end a search, because the id may be behind it. A
slot that was never used ends the search. Once used, it never looks unused again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int64
from . import layout
from .layout import Arrays
from .placement import EMPTY, ERASED, HOME_LANES, LANES, candidates, mix_at, own_place, word
from .toolchain import blocks, jit, several, tl, writer_tile


@jit
def live_count(used: tl.tensor | None, n: tl.tensor) -> tl.tensor:
    """Returns how many of n keys count: all, or the number in `used` on the device."""
    if used is None:
        return n.to(tl.int64)
    else:  # noqa: RET505 (Triton wants both arms)
        return tl.minimum(tl.load(used), n.to(tl.int64))


@jit
def table_of(splits: tl.tensor, i: tl.tensor, K: tl.constexpr, ROOM: tl.constexpr) -> tl.tensor:
    """Returns the table number of the key at each position. ROOM is a power of two, at least K."""
    k = tl.arange(0, ROOM)
    cuts = tl.load(splits + k, mask=k < K, other=2**62)
    return tl.sum((cuts[None, :] <= i[:, None]).to(tl.int32), axis=1) - 1


@jit
def span_of(
    tables: tl.tuple,
    used: tl.tensor | None,
    i: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns first bucket and bucket count of each key's table, and whether the key counts."""
    spans, splits = tables
    if spans is None:
        return buckets.to(tl.int64) * 0, buckets.to(tl.int64), i < live_count(used, n)
    else:  # noqa: RET505 (Triton wants both arms)
        inside = i < n
        k = tl.where(inside, table_of(splits, i, K, ROOM), 0)
        live = inside
        if used is not None:
            live = live & (i - tl.load(splits + k) < tl.load(used + k))
        return tl.load(spans + 2 * k), tl.load(spans + 2 * k + 1), live


@jit
def own_slot(slot: tl.tensor, base: tl.tensor) -> tl.tensor:
    """Returns slots numbered within their table, whose first bucket is `base`. -1 stays."""
    return tl.where(slot >= 0, slot - base * LANES, slot)


@jit
def _match(line: tl.tensor, ids: tl.tensor, bucket: tl.tensor, asked: tl.tensor) -> tl.tensor:
    """Returns the slot of each id in its line of keys, or -1."""
    lanes = tl.arange(0, LANES)[None, :]
    lane = tl.max(tl.where((line == ids[:, None]) & asked[:, None], lanes, -1), axis=1)
    return tl.where(lane >= 0, bucket * LANES + lane, -1)


@jit
def probe(
    index: tl.tensor,
    mix: tl.tensor,
    ids: tl.tensor,
    live: tl.tensor,
    base: tl.tensor,
    buckets: tl.tensor,
    LINES: tl.constexpr,
) -> tl.tensor:
    """Returns the slot of each live id, or -1.

    The second bucket is read only if all home lanes of the first were used before. Otherwise no id
    went on to its second bucket.
    """
    first, second = candidates(mix, ids, base, buckets)
    lanes = tl.arange(0, LANES)[None, :]
    special, own = own_place(ids, base, buckets)
    ordinary = live & ~special
    line = tl.load(
        index + first[:, None] * (LINES * LANES) + lanes, mask=ordinary[:, None], other=0
    )
    slot = _match(line, ids, first, ordinary)
    home_free = tl.max(((line == EMPTY) & (lanes < HOME_LANES)).to(tl.int32), axis=1)
    go_on = ordinary & (slot < 0) & (home_free == 0)
    line = tl.load(index + second[:, None] * (LINES * LANES) + lanes, mask=go_on[:, None], other=0)
    slot = tl.where(go_on, _match(line, ids, second, go_on), slot)
    held = tl.load(index + word(own, 0, LINES), mask=live & special, other=EMPTY)
    return tl.where(live & special & (held != EMPTY), own, slot)


@jit(do_not_specialize=["n", "buckets"])
def _find(
    ids: tl.tensor,
    used: tl.tensor | None,
    index: tl.tensor,
    spans: tl.tensor | None,
    splits: tl.tensor | None,
    slots: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    base, count, live = span_of((spans, splits), used, i, n, buckets, K, ROOM)
    slot = probe(
        index,
        mix_at(index, buckets, LINES),
        tl.load(ids + i, mask=live, other=0),
        live,
        base,
        count,
        LINES,
    )
    tl.store(slots + i, own_slot(slot, base), mask=i < n)


def find(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    used: Int64[Tensor, "K"] | None = None,
    splits: Int64[Tensor, "K+1"] | None = None,
) -> Int64[Tensor, "n"]:
    """Returns the slot of each id, -1 if absent or at a position from `used` on.

    With several tables, `splits` divides the ids by table, and slots are numbered within each
    table.
    """
    slots = torch.empty_like(ids)
    if len(ids):
        grid = blocks(len(ids), 32)
        _find[grid](
            *(ids, used, table.index, table.spans, splits, slots, len(ids), table.buckets),
            **several(table.tables),
            LINES=table.lines,
            ROWS=32,
        )
    return slots


TAKEN = tl.constexpr(layout.TAKEN)
NOWHERE = tl.constexpr(8 * layout.LANES)  # larger than any result of `_first_free`


@jit
def _hit(line: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """Returns the lane that holds the id, or -1."""
    lanes = tl.arange(0, LANES)[None, :]
    return tl.max(tl.where(line == ids[:, None], lanes, -1), axis=1)


@jit
def _first_free(line: tl.tensor, SECOND: tl.constexpr) -> tl.tensor:
    """Returns twice the rank of the first free lane, plus 1 if it was erased, or NOWHERE."""
    lanes = tl.arange(0, LANES)
    home = lanes + SECOND * HOME_LANES
    beyond = HOME_LANES + 2 * lanes + SECOND
    rank = tl.where(lanes < HOME_LANES, home, beyond)[None, :]
    told = 2 * rank + (line == ERASED).to(tl.int32)
    return tl.min(tl.where((line == EMPTY) | (line == ERASED), told, NOWHERE), axis=1)


@jit
def _lane_of(rank: tl.tensor, in_first: tl.tensor) -> tl.tensor:
    """Returns the lane of this rank."""
    home = tl.where(in_first, rank, rank - HOME_LANES)
    return tl.where(home < HOME_LANES, home, (rank - HOME_LANES) // 2)


@jit
def look(
    index: tl.tensor,
    ids: tl.tensor,
    todo: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns the slot of each id or -1, a free slot for it or -1, and whether that one was erased.

    The loads are volatile: a cached line could show the same free lane forever.
    """
    lanes = tl.arange(0, LANES)[None, :]
    at = index + first[:, None] * (LINES * LANES) + lanes
    one = tl.load(at, mask=todo[:, None], volatile=True)
    hit, rank = _hit(one, ids), _first_free(one, 0)
    held = tl.where(hit >= 0, first * LANES + hit, -1)
    unused = tl.max(((one == EMPTY) & (lanes < HOME_LANES)).to(tl.int32), axis=1)
    go_on = todo & (hit < 0) & (unused == 0)
    at = index + second[:, None] * (LINES * LANES) + lanes
    two = tl.load(at, mask=go_on[:, None], volatile=True)
    hit, other_rank = _hit(two, ids), _first_free(two, 1)
    held = tl.where(go_on & (hit >= 0), second * LANES + hit, held)
    in_first = ~go_on | (rank < other_rank)
    best = tl.where(in_first, rank, other_rank)
    free = tl.where(in_first, first, second) * LANES + _lane_of(best // 2, in_first)
    return held, tl.where(best < NOWHERE, free, -1), best % 2 == 1


@jit
def claim(
    index: tl.tensor,
    mix: tl.tensor,
    ids: tl.tensor,
    todo: tl.tensor,
    base: tl.tensor,
    buckets: tl.tensor,
    LINES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the slot of each id with `todo` (-1: no slot is free) and whether it was inserted."""
    first, second = candidates(mix, ids, base, buckets)
    special, own = own_place(ids, base, buckets)
    stored = tl.where(special, tl.full(ids.shape, TAKEN, tl.int64), ids)
    empty = tl.full(ids.shape, EMPTY, tl.int64)  # a bare literal might be 32 bits
    erased = tl.full(ids.shape, ERASED, tl.int64)
    slot = tl.full(ids.shape, -1, tl.int64)
    born = ids != ids
    while tl.max(todo.to(tl.int32), axis=0) > 0:
        held, free, was_erased = look(index, ids, todo & ~special, first, second, LINES)
        held = tl.where(special, -1, held)
        free = tl.where(special, own, free)  # the swap shows whether it is free
        was_erased = was_erased & ~special
        slot = tl.where(todo & (held >= 0), held, slot)
        todo = todo & (held < 0) & (free >= 0)
        if tl.max(todo.to(tl.int32), axis=0) > 0:
            # The swap has no mask: lanes without work swap a value for itself.
            place = tl.where(todo, free, first * LANES)
            vacant = tl.where(was_erased, erased, empty)
            expected = tl.where(todo, vacant, stored)
            old = tl.atomic_cas(index + word(place, 0, LINES), expected, stored, sem="relaxed")
            won = todo & (old == vacant)
            done = won | (todo & (old == stored))
            slot = tl.where(done, place, slot)
            born = born | won
            todo = todo & ~done
    return slot, born


@jit(do_not_specialize=["n", "buckets"])
def _find_or_insert(
    ids: tl.tensor,
    wanted: tl.tensor | None,
    index: tl.tensor,
    spans: tl.tensor | None,
    splits: tl.tensor | None,
    slots: tl.tensor,
    new: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    base, count, live = span_of((spans, splits), None, i, n, buckets, K, ROOM)
    if wanted is not None:
        live = live & tl.load(wanted + i, mask=live, other=0).to(tl.int1)
    slot, born = claim(
        index,
        mix_at(index, buckets, LINES),
        tl.load(ids + i, mask=live, other=0),
        live,
        base,
        count,
        LINES,
    )
    tl.store(slots + i, own_slot(slot, base), mask=i < n)
    tl.store(new + i, born, mask=i < n)


@jit(do_not_specialize=["n", "buckets"])
def _exchange(
    ids: tl.tensor,
    rows: tl.tensor,
    index: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    new: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot, born = claim(
        index,
        mix_at(index, buckets, LINES),
        tl.load(ids + i, mask=i < n, other=0),
        i < n,
        0,
        buckets,
        LINES,
    )
    tl.store(slots + i, slot, mask=i < n)
    tl.store(new + i, born, mask=i < n)
    column = tl.arange(0, COLUMNS)[None, :]
    ours = i[:, None] * WIDTH + column
    theirs = slot[:, None] * STRIDE + column
    put = born[:, None] & (column < WIDTH)
    given = tl.load(rows + ours, mask=put, other=0.0)
    tl.store(values + theirs, given, mask=put)
    take = ((slot >= 0) & ~born)[:, None] & (column < WIDTH)
    tl.store(rows + ours, tl.load(values + theirs, mask=take, other=0.0), mask=take)


def exchange(
    table: Arrays, ids: Int64[Tensor, "n"], rows: Float32[Tensor, "n width"]
) -> tuple[Int64[Tensor, "n"], Bool[Tensor, "n"]]:
    """Inserts the rows of new ids, and copies the rows of resident ids into `rows`.

    The ids must be distinct. Returns the slot of each id and whether it is new, as
    `find_or_insert`.
    """
    slots, new = torch.empty_like(ids), torch.empty_like(ids, dtype=torch.bool)
    if len(ids):
        tile = writer_tile(rows.shape[1])
        _exchange[blocks(len(ids), tile["ROWS"])](
            *(ids, rows, table.index, table.values, slots, new, len(ids), table.buckets),
            WIDTH=rows.shape[1],
            STRIDE=table.stride,
            LINES=table.lines,
            **tile,
        )
    return slots, new


def find_or_insert(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"] | None = None,
    wanted: Bool[Tensor, "n"] | None = None,
) -> tuple[Int64[Tensor, "n"], Bool[Tensor, "n"]]:
    """Returns the slot of each id (-1: no slot is free), and whether this occurrence inserted it.

    Rows are not set. With `wanted` only these ids are considered.
    """
    slots, new = torch.empty_like(ids), torch.empty_like(ids, dtype=torch.bool)
    if len(ids):
        grid = blocks(len(ids), 32)
        _find_or_insert[grid](
            *(ids, wanted, table.index, table.spans, splits, slots, new, len(ids), table.buckets),
            **several(table.tables),
            LINES=table.lines,
            ROWS=32,
        )
    return slots, new
