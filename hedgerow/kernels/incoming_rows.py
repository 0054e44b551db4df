"""Moves rows from other stores into device tables: lists missing ids and inserts their rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int32, Int64
from .find import claim, own_slot, probe, span_of, table_of
from .layout import Arrays
from .placement import TIMES, mix_at, word
from .toolchain import blocks, columns_of, jit, several, tl, writer_tile

_TILE = {"ROWS": 128, "num_warps": 4}


@dataclass(frozen=True, slots=True, eq=False)
class MissList:
    """The ids without a row in K tables, up to a limit per table, in any order.

    `words` holds the number of missing ids per table (possibly above the limit), the number of
    incoming rows per table that found no free slot, and then the ids, grouped by table. So one copy
    brings all to the host. `at` holds the position of each id in the batch. Each table has `room`
    entries, or the entries given by `cuts`.
    """

    words: Int64[Tensor, "2K+places"]
    at: Int64[Tensor, "places"]
    room: int
    cuts: Int64[Tensor, "K+1"] | None = None

    @staticmethod
    def empty(
        ids: Int64[Tensor, "n"], splits: Int64[Tensor, "K+1"], room: int | None = None
    ) -> MissList:
        """Returns an empty list for up to `room` ids per table, or for all of them."""
        tables, device = len(splits) - 1, ids.device
        places = len(ids) if room is None else tables * room
        words = torch.zeros(2 * tables + places, dtype=torch.int64, device=device)
        at = torch.empty(places, dtype=torch.int64, device=device)
        return MissList(words, at, room or 0, splits if room is None else None)

    @property
    def tables(self) -> int:
        """The number of tables, K."""
        return (self.words.shape[0] - self.at.shape[0]) // 2

    @property
    def left(self) -> Int64[Tensor, "K"]:
        """The number of ids of each table that found no free slot."""
        return self.words[self.tables : 2 * self.tables]


@jit
def list_of(cuts: tl.tensor | None, k: tl.tensor, room: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Returns where the ids of table k begin in a list, and how many it can hold."""
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
    """Adds the absent keys at positions i of the batch, of tables k, to the list."""
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
        # Keep a later use that another kernel has set meanwhile. Few slots are older, so most are
        # skipped.
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
) -> MissList:
    """Returns the ids without a row, up to `room` per table, or all of them.

    Resident rows are marked as used `now`, unless they were used later.
    """
    return _listed(table, ids, splits, used, None, now, room)


def find_and_list(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    room: int | None = None,
) -> tuple[Int64[Tensor, "n"], MissList]:
    """Returns the slots of ids within their tables (-1 if absent), and lists the misses.

    It combines `find.find` and `absent_slots`.
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
) -> MissList:
    listing, n = MissList.empty(ids, splits, room), ids.shape[0]
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
) -> MissList:
    """Returns the ids whose slot is -1, up to `room` per table, or all of them.

    Unused entries of the list are undefined.
    """
    listing = MissList.empty(ids, splits, room)
    if len(ids):
        _absent_slots[blocks(len(ids), 1024)](
            *(ids, slots, splits, listing.cuts, listing.words, listing.at, len(ids)),
            listing.room,
            **several(listing.tables),
            ROWS=1024,
        )
    return listing


_TOGETHER = tl.constexpr(16)  # rows per group; aligns every part for the device


@dataclass(frozen=True, eq=False)
class IncomingRows:
    """Incoming rows with ids, states and times, and which of them were found, grouped by table.

    `words` is on the device, or in host memory that the device can read. All parts are whole words:
    the start of each table's rows and the end of the last, then ids, times, rows, states, and the
    flags that say which rows were found.
    """

    words: Int64[Tensor, "words"]
    tables: int
    rows: int
    dim: int
    state_floats: int

    @staticmethod
    def words_of(tables: int, rows: int, dim: int, state_floats: int) -> int:
        """Returns the number of words for these numbers of tables and rows.

        >>> IncomingRows.words_of(2, 10, 4, 0)
        70
        """
        room = _room(rows)
        return _head(tables) + 2 * room + (dim + state_floats) * room // 2 + room // 8

    @cached_property
    def places(self) -> tuple[int, int, int, int, int]:
        """The offsets of ids, times, rows, states and flags, in words."""
        room, ids = _room(self.rows), _head(self.tables)
        rows = ids + 2 * room
        states = rows + self.dim * room // 2
        return ids, ids + room, rows, states, states + self.state_floats * room // 2

    @property
    def cuts(self) -> Int64[Tensor, "K+1"]:
        """The start of each table's rows, and the end of the last."""
        return self.words[: self.tables + 1]

    def parts(
        self,
    ) -> tuple[
        Int64[Tensor, "n"],
        Bool[Tensor, "n"],
        Float32[Tensor, "n dim"],
        Float32[Tensor, "n floats"],
        Int64[Tensor, "n"],
    ]:
        """Returns ids, flags, rows, states and times as views.

        >>> words = torch.zeros(IncomingRows.words_of(2, 3, 1, 1), dtype=torch.int64)
        >>> piece = IncomingRows(words, 2, 3, 1, 1)
        >>> ids, found, rows, states, times = piece.parts()
        >>> rows[2] = 7.0
        >>> ids.tolist(), found.tolist(), rows.tolist(), states.shape[1]
        ([0, 0, 0], [False, False, False], [[0.0], [0.0], [7.0]], 1)
        """
        n, words = self.rows, self.words
        ids, times, rows, states, found = self.places
        floats = self.words.view(torch.float32)
        return (
            words[ids : ids + n],
            words[found:].view(torch.bool)[:n],
            floats[2 * rows : 2 * rows + n * self.dim].view(n, self.dim),
            floats[2 * states : 2 * states + n * self.state_floats].view(n, self.state_floats),
            words[times : times + n],
        )


def _head(tables: int) -> int:
    return (tables + 2) // 2 * 2


def _room(rows: int) -> int:
    together: int = _TOGETHER.value
    return (rows + together - 1) // together * together


@jit
def parts_of(
    piece: tl.tensor,
    n: tl.tensor,
    K: tl.constexpr,
    DIM: tl.constexpr,
    STATES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Returns `IncomingRows.parts` of n rows, as pointers."""
    room = (n.to(tl.int64) + _TOGETHER - 1) // _TOGETHER * _TOGETHER
    ids = piece + (K + 2) // 2 * 2
    times = ids + room
    rows = (times + room).to(tl.pointer_type(tl.float32))
    states = rows + DIM * room
    found = (states + STATES * room).to(tl.pointer_type(tl.int8))
    return ids, found, rows, states, times


@jit
def _tell(
    batch: tl.tuple,
    slot: tl.tensor,
    i: tl.tensor,
    k: tl.tensor,
    first: tl.tensor,
    inside: tl.tensor,
    room: tl.tensor,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """Sets the slots of the batch that listed these ids. Returns their positions in the batch."""
    at, cuts, slots, left = batch
    start, _ = list_of(cuts, k, room)
    where = tl.load(at + start + i - first, mask=inside, other=0)
    tl.store(slots + where, slot, mask=inside)
    lost = inside & (slot < 0)
    if tl.max(lost.to(tl.int32), axis=0) > 0:
        tl.atomic_add(left + k, tl.full((ROWS,), 1, tl.int64), mask=lost, sem="relaxed")
    return where


@jit(do_not_specialize=["n", "buckets", "now", "room"])
def _put_rows(
    piece: tl.tensor,
    index: tl.tensor,
    values: tl.tensor,
    spans: tl.tensor,
    used: tl.tensor,
    counts: tl.tensor,
    places: tl.tensor,
    at: tl.tensor | None,
    cuts: tl.tensor | None,
    slots: tl.tensor | None,
    out: tl.tensor | None,
    words: tl.tensor | None,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    room: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    DIM: tl.constexpr,
    STATES: tl.constexpr,
    STRIDE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STATE_COLUMNS: tl.constexpr,
) -> None:
    ids, wanted, rows, states, times = parts_of(piece, n, K, DIM, STATES)
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    base, count, inside = span_of((spans, piece), None, i, n, buckets, K, ROOM)
    live = inside & tl.load(wanted + i, mask=inside, other=0).to(tl.int1)
    column = tl.arange(0, COLUMNS)[None, :]
    # Memory that may be far away is loaded before the search, which waits for its own loads.
    asked = live if out is None else inside
    row = tl.load(rows + i[:, None] * DIM + column, mask=asked[:, None] & (column < DIM), other=0.0)
    time = tl.load(times + i, mask=live, other=0)
    ids_here, mix = tl.load(ids + i, mask=live, other=0), mix_at(index, buckets, LINES)
    slot, born = claim(index, mix, ids_here, live, base, count, LINES)
    tl.store(places + i, tl.where(born, slot, -1).to(tl.int32), mask=i < n)
    tl.store(used + slot, tl.zeros((ROWS,), tl.int32) + now, mask=born)
    k = tl.where(inside, table_of(piece, i, K, ROOM), 0)
    tl.atomic_add(counts + k, tl.full((ROWS,), 1, tl.int64), mask=born, sem="relaxed")
    tl.store(index + word(slot, TIMES, LINES), time, mask=born)
    there = born[:, None] & (column < DIM)
    tl.store(values + slot[:, None] * STRIDE + column, row, mask=there)
    if STATES > 0:
        state_column = tl.arange(0, STATE_COLUMNS)[None, :]
        there = born[:, None] & (state_column < STATES)
        state = tl.load(states + i[:, None] * STATES + state_column, mask=there, other=0.0)
        tl.store(values + slot[:, None] * STRIDE + DIM + state_column, state, mask=there)
    if at is not None:
        batch, first = (at, cuts, slots, words + K), tl.load(piece + k)
        where = _tell(batch, own_slot(slot, base), i, k, first, inside, room, ROWS)
        if out is not None:
            there = inside[:, None] & (column < DIM)
            tl.store(out + where[:, None] * DIM + column, row, mask=there)


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalCounts:
    """Statistics of incoming rows: the last use of each slot, and the number of rows per table."""

    used: Int32[Tensor, "slots"]
    came: Int64[Tensor, "K"]


@dataclass(frozen=True, slots=True, eq=False)
class WaitingBatch:
    """A batch whose missing ids are being fetched.

    `slots` are numbered within each table, -1 for an id without a free slot; the listing counts
    such ids per table. The rows of the ids are copied to `out`, if given, whether or not they get a
    slot.
    """

    listing: MissList
    slots: Int64[Tensor, "batch"]
    out: Float32[Tensor, "batch dim"] | None


def put_rows(
    table: Arrays,
    coming: IncomingRows,
    uses: ArrivalCounts,
    now: int,
    waiting: WaitingBatch | None = None,
) -> Int32[Tensor, "n"]:
    """Inserts incoming rows of several tables for ids without a row, marked as used `now`.

    If ids repeat, one of them gets a row. Returns the slots that were taken, numbered over all
    tables; -1 for an id that has a row, was not found, or has no free slot. If a batch is
    `waiting`, the rows must be exactly the ids of its list, in order, and its slots are set. Equal
    ids were either all found or none of them.
    """
    n, floats = coming.rows, coming.state_floats
    places = torch.empty(n, dtype=torch.int32, device=table.index.device)
    told, room = (None,) * 5, 0
    if waiting is not None:
        listing, room = waiting.listing, waiting.listing.room
        told = (listing.at, listing.cuts, waiting.slots, waiting.out, listing.words)
    if n:
        tile = writer_tile(max(table.dim, floats))
        _put_rows[blocks(n, tile["ROWS"])](
            *(coming.words, table.index, table.values, table.spans, uses.used, uses.came),
            *(places, *told, n, table.buckets, now, room),
            **several(table.tables),
            DIM=table.dim,
            STATES=floats,
            STRIDE=table.stride,
            LINES=table.lines,
            **{**tile, "COLUMNS": columns_of(table.dim)},
            STATE_COLUMNS=columns_of(max(1, floats)),
        )
    return places
