"""Lists the ids of a batch that have no row; tells where the others are, or that they are used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Int32, Int64
from .find import own_slot, probe, span_of, table_of
from .layout import Arrays
from .placement import mix_at
from .toolchain import blocks, jit, several, tl

_TILE = {"ROWS": 128, "num_warps": 4}


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Ids of K tables that have no row, in any order, up to some of each table.

    `words` are how many there are of each table, maybe more than it has room for, how many found no
    place when their rows came, and then the ids, those of a table from its start on: one copy
    brings all to the host. `at` says where in the batch each stands. Each table has `room` for as
    many, or the tables' starts are those of `cuts`.
    """

    words: Int64[Tensor, "2K+places"]
    at: Int64[Tensor, "places"]
    room: int
    cuts: Int64[Tensor, "K+1"] | None = None

    @staticmethod
    def empty(
        ids: Int64[Tensor, "n"], splits: Int64[Tensor, "K+1"], room: int | None = None
    ) -> Listing:
        """For up to `room` of these ids of each table, or for all of them."""
        tables, device = len(splits) - 1, ids.device
        places = len(ids) if room is None else tables * room
        words = torch.zeros(2 * tables + places, dtype=torch.int64, device=device)
        at = torch.empty(places, dtype=torch.int64, device=device)
        return Listing(words, at, room or 0, splits if room is None else None)

    @property
    def tables(self) -> int:
        """K."""
        return (self.words.shape[0] - self.at.shape[0]) // 2

    @property
    def left(self) -> Int64[Tensor, "K"]:
        """How many ids of each table found no place."""
        return self.words[self.tables : 2 * self.tables]


@jit
def list_of(cuts: tl.tensor | None, k: tl.tensor, room: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Where the ids of table k begin in a list, and for how many there is room."""
    if cuts is None:
        return k * room.to(tl.int64), room.to(tl.int64) + 0 * k
    else:  # noqa: RET505 (Triton wants both arms)
        start = tl.load(cuts + k)
        return start, tl.load(cuts + k + 1) - start


@jit
def add_to_list(
    words: tl.tensor,
    at: tl.tensor,
    cuts: tl.tensor | None,
    key: tl.tensor,
    i: tl.tensor,
    k: tl.tensor,
    absent: tl.tensor,
    room: tl.tensor,
    K: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """The keys at positions i of the batch, of tables k, that are absent."""
    one = tl.full((ROWS,), 1, tl.int64)
    place = tl.atomic_add(words + k, one, mask=absent, sem="relaxed")
    start, most = list_of(cuts, k, room)
    listed = absent & (place < most)
    tl.store(words + 2 * K + start + place, key, mask=listed)
    tl.store(at + start + place, i, mask=listed)


@jit(do_not_specialize=["n", "buckets", "now", "room"])
def _absent(
    ids: tl.tensor,
    index: tl.tensor,
    spans: tl.tensor | None,
    splits: tl.tensor,
    used: tl.tensor | None,
    slots: tl.tensor | None,
    cuts: tl.tensor | None,
    words: tl.tensor,
    at: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    room: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    base, count, live = span_of((spans, splits), None, i, n, buckets, K, ROOM)
    key = tl.load(ids + i, mask=live, other=0)
    slot = probe(index, mix_at(index, buckets, LINES), key, live, base, count, LINES)
    absent = live & (slot < 0)
    if slots is not None:
        tl.store(slots + i, own_slot(slot, base), mask=live)
    if used is not None:
        # Not before a later use, by whoever works beside this. Few are older: most are left.
        when = tl.zeros((ROWS,), tl.int32) + now
        older = (slot >= 0) & (tl.load(used + slot, mask=slot >= 0, other=0) < when)
        tl.atomic_max(used + slot, when, mask=older, sem="relaxed")
    if tl.max(absent.to(tl.int32), axis=0) > 0:
        k = tl.where(live, table_of(splits, i, K, ROOM), 0)
        add_to_list(words, at, cuts, key, i, k, absent, room, K, ROWS)


def absent(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    used: Int32[Tensor, "slots"],
    now: int,
    room: int | None = None,
) -> Listing:
    """Those of the ids without a row, up to `room` of each table, or all of them.

    Rows that are there count as `used` now, unless they were later.
    """
    return _listed(table, ids, splits, used, None, now, room)


def find_and_list(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    room: int | None = None,
) -> tuple[Int64[Tensor, "n"], Listing]:
    """The slots of ids, each within its table, -1 = absent; and these, up to `room` of each table.

    What `find.find` tells and `absent_slots` lists.
    """
    slots = torch.empty_like(ids)
    return slots, _listed(table, ids, splits, None, slots, 0, room)


def _listed(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    used: Int32[Tensor, "slots"] | None,
    slots: Int64[Tensor, "n"] | None,
    now: int,
    room: int | None,
) -> Listing:
    listing, n = Listing.empty(ids, splits, room), ids.shape[0]
    if n:
        _absent[blocks(n, _TILE["ROWS"])](
            *(ids, table.index, table.spans, splits, used, slots),
            *(listing.cuts, listing.words, listing.at, n, table.buckets, now, listing.room),
            **several(listing.tables),
            LINES=table.lines,
            **_TILE,
        )
    return listing


@jit(do_not_specialize=["n", "room"])
def _absent_slots(
    ids: tl.tensor,
    slots: tl.tensor,
    splits: tl.tensor,
    cuts: tl.tensor | None,
    words: tl.tensor,
    at: tl.tensor,
    n: tl.tensor,
    room: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    absent = tl.load(slots + i, mask=i < n, other=0) < 0
    if tl.max(absent.to(tl.int32), axis=0) > 0:
        k = tl.where(absent, table_of(splits, i, K, ROOM), 0)
        key = tl.load(ids + i, mask=absent, other=0)
        add_to_list(words, at, cuts, key, i, k, absent, room, K, ROWS)


def absent_slots(
    ids: Int64[Tensor, "n"],
    slots: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    room: int | None = None,
) -> Listing:
    """Those of the ids whose slots are -1, up to `room` of each table, or all of them.

    What stands where none is listed is any number.
    """
    listing = Listing.empty(ids, splits, room)
    if len(ids):
        _absent_slots[blocks(len(ids), 1024)](
            *(ids, slots, splits, listing.cuts, listing.words, listing.at, len(ids)),
            listing.room,
            **several(listing.tables),
            ROWS=1024,
        )
    return listing
