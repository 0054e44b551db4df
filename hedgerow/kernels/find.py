"""Finds the slots of ids; changes nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Int64
from .layout import Arrays
from .placement import EMPTY, HOME_LANES, LANES, candidates, mix_at, own_place, word
from .toolchain import blocks, jit, several, tl


@jit
def live_count(used: tl.tensor | None, n: tl.tensor) -> tl.tensor:
    """How many of n keys count: all, or as many as the device says."""
    if used is None:
        return n.to(tl.int64)
    else:  # noqa: RET505 (Triton wants both arms)
        return tl.minimum(tl.load(used), n.to(tl.int64))


@jit
def table_of(splits: tl.tensor, i: tl.tensor, K: tl.constexpr, ROOM: tl.constexpr) -> tl.tensor:
    """The number of the table that the key at each position is for; ROOM >= K, a power of two."""
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
    """First bucket and buckets of the table of the key at each position; whether it counts."""
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
    """The number that a slot has within its table, whose first bucket is `base`; -1 stays."""
    return tl.where(slot >= 0, slot - base * LANES, slot)


@jit
def _match(line: tl.tensor, ids: tl.tensor, bucket: tl.tensor, asked: tl.tensor) -> tl.tensor:
    """The slot of each id in its line of keys, or -1."""
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
    """The slot of each live id, or -1.

    The second bucket is read only where no home lane of the first was never used: no id has gone on
    to its second bucket before.
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
    """The slot of each id; -1 where there is none, and from `used` on.

    Of several tables, `splits` say where the ids of each begin and end; slots are their own.
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
