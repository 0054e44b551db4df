"""The layout of a table in device memory: its arrays, and constants shared by kernels and tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.hashing import signed64
from ..core.shapes import Bool, Float32, Float64, Int32, Int64

LANES = 16  # ids per bucket: 128 bytes, one memory transaction
# An id goes to its second bucket only if this many lanes of its first are taken. With 20,000
# buckets at load 0.5 / 0.75 / 0.85 / 0.9, 1.6 / 9.7 / 13 / 14 % of the ids are in their second
# bucket (with 0: 32 %), and 0 / 0 / 1e-5 / 8e-4 have no free slot (with 16: 0 / 2e-3 / 1e-2 /
# 2e-2).
HOME_LANES = 12
# The lines of a bucket. Without a line of scores, times serve as scores, hence -1.
KEYS, TIMES, SCORES = 0, 1, -1
# The keys of a slot that was never used, and of a slot whose id was erased. A search stops at the
# former but not at the latter. Ids with these values are legal: each has a slot of its own behind
# the buckets. The patterns are random, so that they hardly ever equal a real id.
EMPTY = signed64(0xA3C59AC2F0B1E6D7)
ERASED = signed64(0x5D1B0E7743C8F2A9)
TAKEN = ~EMPTY  # key in the slot of such an id once the id has a row
NEWBORN = -1  # time and score of a slot without a row, or with an unset row
# Gradients of an id are summed in input order. From this many on, they are summed in pieces of this
# size, each in order, and then the pieces in order. So a very frequent id is not summed by one
# program alone, and the order depends only on the id's own occurrences.
PIECE = 256
SHORT = 32  # up to this many occurrences are summed by the update kernel, more before it
SCORE = 2**48 - 1  # largest score in a score word, see `evict`
STAMP = 2**63 - 1  # largest stamp in a time word if times are not used as scores
# The weights of uses in scores, and the marks in stamps: see `csrc/evict.h`.
MARK, FRACTION = 2**31 - 1, 14
AHEAD = 32 << FRACTION
# The results of `insert_and_evict` for an id.
INSERTED, RECLAIMED, ASSIGNED, EVICTED, BUSY, NOT_ASKED = 0, 1, 2, 3, 5, 7
# The numbers of an update rule, see `rules`: settings, then first values of states.
SETTINGS, STARTS = 8, 4
NO_STEP = -1  # the step of an update without a step number, as in csrc/optimizer.h
TABULATED_DRIFTS = 2**12  # as in csrc/rules_adam.h
# The finalizer of splitmix64. The router uses another mixer; with the same one, some buckets of an
# owner's table could never be reached.
MIX_START = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MIX = 3  # words into which a slot key turns these three constants, see `mix_of`
_ALL = 2**64 - 1


def mixed(x: int, add: int = 0, by_1: int = 0, by_2: int = 0) -> int:
    """Returns the hash of a number with the words of `mix_of`. By default no slot key is used.

    >>> mixed(0) == mixed(0, *mix_of(0)), mixed(0) == mixed(0, *mix_of(1))
    (True, False)
    """
    x = (x + (MIX_START + add)) & _ALL
    x = (x ^ (x >> 30)) * (MIX_1 ^ by_1) & _ALL
    x = (x ^ (x >> 27)) * (MIX_2 ^ by_2) & _ALL
    return x ^ (x >> 31)


def mix_of(slot_key: int) -> tuple[int, int, int]:
    """Returns what a slot key adds to the mixer's start, and which bits of its factors it flips.

    The factors stay odd. Key 0 changes nothing. The words are hashes of the key, so that no pair of
    ids collides under most keys.

    >>> mix_of(0), [word % 2 for word in mix_of(7)[1:]]
    ((0, 0, 0), [0, 0])
    """
    if slot_key == 0:
        return 0, 0, 0
    first, second = mixed(slot_key), mixed(slot_key ^ MIX_1)
    return slot_key, first << 1 & _ALL, second << 1 & _ALL


def turned(words: Sequence[int], device: torch.device) -> Int64[Tensor, "words"]:
    """Returns the words inverted. For key 0 they look like slots without a row."""
    return torch.tensor([~signed64(word) for word in words], device=device)


def padded(floats: int) -> int:
    """Returns the floats from one row to the next, for rows of this many floats.

    Rows that begin at 128-byte lines, or at least at 32-byte sectors, are read and written faster:
    updates of rows that straddled lines took a third longer. If that costs more than a sixth of the
    memory, rows are aligned to 16 bytes.

    >>> [padded(floats) for floats in (3, 24, 64, 129, 194, 386)]
    [4, 24, 64, 136, 224, 416]
    """
    for step in (32, 8):
        width = -(-floats // step) * step
        if width * 6 <= floats * 7:
            return width
    return -(-floats // 4) * 4


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """A table in device memory.

    Bucket b has the slots from `b * LANES` on. Two slots behind the buckets belong to the ids
    `EMPTY` and `ERASED`. A bucket has a line of keys, a line of times and, if rows are `scored` by
    something else than time, a line of scores, one after the other: the time of a row is near its
    key.

    The buckets of an id depend on the slot key. The words of `mix_of` are stored, inverted, at the
    end of the line of times behind the buckets, where kernels read them.
    """

    index: Int64[Tensor, "buckets+1 lines lanes"]
    values: Float32[Tensor, "slots stride"]  # a row, then its states; see `padded`
    dim: int
    pins: Int32[Tensor, "slots"] | None = None  # pin count of each row; None: pins are not used
    spans: Int64[Tensor, "K 2"] | None = None  # of several tables: first bucket and bucket count
    marked: bool = False  # whether times are stamps with marks, which need more bits than scores

    @staticmethod
    def make(
        buckets: int,
        dim: int,
        device: torch.device,
        states: int = 0,
        *,
        scored: bool = False,
        pinned: bool = False,
        slot_key: int = 0,
        marked: bool = False,
    ) -> Arrays:
        """Returns an empty table whose rows are followed by `states` floats."""
        slots = buckets * LANES + 2
        lines = 3 if scored else 2
        index = torch.full((buckets + 1, lines, LANES), NEWBORN, device=device)
        index[:, KEYS] = EMPTY
        made = Arrays(
            index,
            torch.zeros(slots, padded(dim + states), dtype=torch.float32, device=device),
            dim,
            torch.zeros(slots, dtype=torch.int32, device=device) if pinned else None,
            marked=marked,
        )
        if slot_key:
            made.place_by(slot_key)
        return made

    @staticmethod
    def make_several(
        buckets: Sequence[int], dim: int, device: torch.device, states: int = 0
    ) -> Arrays:
        """Returns empty tables with these bucket counts, for kernels that serve all at once.

        Each table has its own two slots for special ids. Kernels take `splits`, which divide the
        keys of a batch by table.
        """
        firsts = [0, *accumulate(count + 1 for count in buckets)]
        spans = torch.tensor(list(zip(firsts, buckets, strict=False)), device=device)
        return replace(Arrays.make(firsts[-1] - 1, dim, device, states), spans=spans)

    @property
    def buckets(self) -> int:
        """The number of buckets, including those between several tables."""
        return self.index.shape[0] - 1

    @property
    def tables(self) -> int:
        """The number of tables."""
        return 1 if self.spans is None else self.spans.shape[0]

    @property
    def lines(self) -> int:
        """The number of lines of a bucket."""
        return self.index.shape[1]

    @property
    def stride(self) -> int:
        """Floats from one row to the next."""
        return self.values.shape[1]

    def line(self, line: int) -> Int64[Tensor, "slots"]:
        """Returns a copy of KEYS, TIMES or SCORES of all slots.

        Without a row the latter two are undefined.
        """
        words = self.index[:, line].flatten()[: len(self.values)]
        return words if line == KEYS else words & self.bits(line)

    def bits(self, line: int) -> int:
        """Returns a mask of the bits of TIMES or SCORES words that hold the time or the score."""
        return STAMP if self.marked and line == TIMES else SCORE

    def read(self, line: int, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns KEYS, TIMES or SCORES of these slots."""
        words = self.index[slots // LANES, line, slots % LANES]
        return words if line == KEYS else words & self.bits(line)

    def write(self, line: int, slots: Int64[Tensor, "n"], words: Int64[Tensor, "n"] | int) -> None:
        """Sets KEYS, TIMES or SCORES of these slots."""
        self.index[slots // LANES, line, slots % LANES] = torch.as_tensor(
            words, device=self.index.device
        )

    def numbered(
        self, slots: Int64[Tensor, "n"], splits: Int64[Tensor, "K+1"] | None = None
    ) -> Int64[Tensor, "n"]:
        """Returns slots numbered over all tables. Kernels number slots within each table.

        `splits` divides the slots by table. -1 stays.
        """
        if self.spans is None:
            return slots
        if splits is None:
            raise InputError(
                f"slots of {self.tables} tables, each numbered within its own; pass their splits."
            )
        at = torch.arange(len(slots), device=slots.device)
        first = self.spans[torch.bucketize(at, splits[1:-1], right=True), 0]
        return torch.where(slots >= 0, slots + first * LANES, slots)

    def within(
        self, numbered: Int32[Tensor, "n"], splits: Int64[Tensor, "K+1"]
    ) -> Int64[Tensor, "n"]:
        """Returns slots numbered within their tables, from slots numbered over all tables.

        -1 stays.
        """
        slots = numbered.long()
        if self.spans is None:
            return slots
        at = torch.arange(len(slots), device=slots.device)
        first = self.spans[torch.bucketize(at, splits[1:-1], right=True), 0]
        return torch.where(slots >= 0, slots - first * LANES, slots)

    def place_by(self, slot_key: int) -> None:
        """Sets the slot key of this single table, which must be empty."""
        self.index[-1, TIMES, -MIX:] = turned(mix_of(slot_key), self.index.device)

    def mix(self) -> tuple[int, int, int]:
        """Returns the words of `mix_of` of this single table. Blocks."""
        add, by_1, by_2 = (~self.index[-1, TIMES, -MIX:]).tolist()
        return add & _ALL, by_1 & _ALL, by_2 & _ALL

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of the index, and of the rows."""
        return self.index.nbytes, self.values.nbytes

    def clear(self, when: Bool[Tensor, ""] | None = None) -> None:
        """Removes all ids of this single table, or does so only if `when` is true on the device."""
        always = torch.ones((), dtype=torch.bool, device=self.index.device)
        mix = self.index[-1, TIMES, -MIX:].clone()
        self.index.masked_fill_(always if when is None else when, NEWBORN)
        self.index[:, KEYS].masked_fill_(always if when is None else when, EMPTY)
        self.index[-1, TIMES, -MIX:] = mix

    def taken(self) -> Bool[Tensor, "slots"]:
        """Returns which slots have a row."""
        keys = self.line(KEYS)
        return (keys != EMPTY) & (keys != ERASED)

    def ids(self, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns the ids of the rows in these slots."""
        if self.spans is None:
            special = slots >= self.buckets * LANES
        else:
            special = torch.isin(slots // LANES, self.spans.sum(dim=1))
        first = slots % LANES == 0
        ids = torch.where(special & first, EMPTY, self.read(KEYS, slots))
        return torch.where(special & ~first, ERASED, ids)


@dataclass(frozen=True, slots=True)
class FirstValues:
    """The distribution of first values of new rows, as numbers."""

    kind: str  # constant, uniform, normal or truncated_normal
    a: float  # value, low or mean
    b: float  # unused, high or deviation
    seed: int  # 0..2**64-1

    @property
    def scale(self) -> float:
        """The factor of a draw, rounded to float32 as in the core."""
        if self.kind != "uniform":
            return self.b
        return float(np.float32(self.b) - np.float32(self.a))


@dataclass(frozen=True, slots=True, eq=False)
class RowSegment:
    """One segment of the rows: its columns, its first values, and its update rule."""

    start: int  # its first column
    dim: int
    state: int  # the first column of its states
    first: FirstValues
    rule: str
    # On the device: settings of the rule, first values of its states, and drifts of dense Adam.
    numbers: Float64[Tensor, "12+"]
    draws: Int64[Tensor, "K 3"] | None = None  # of several tables, see `draws_of`; None: `first`

    @staticmethod
    def numbers_of(
        settings: Sequence[float],
        starts: Sequence[float],
        device: torch.device,
        drifts: Sequence[float] = (),
    ) -> Float64[Tensor, "12+"]:
        """Returns settings, first values of states and drifts in the form that kernels read."""
        filled = torch.zeros(SETTINGS + STARTS + len(drifts), dtype=torch.float64)
        filled[: len(settings)] = torch.tensor(settings, dtype=torch.float64)
        filled[SETTINGS : SETTINGS + len(starts)] = torch.tensor(starts, dtype=torch.float64)
        filled[SETTINGS + STARTS :] = torch.tensor(drifts, dtype=torch.float64)
        return filled.to(device)


def drifts(beta1: float, beta2: float) -> list[float]:
    """Returns how far a row of dense Adam moves in updates without a gradient, after each update.

    The unit is rate * first moment / root of the second moment, see csrc/rules_adam.h.

    >>> len(drifts(0.9, 0.999)), round(drifts(0.9, 0.999)[4096], 2)
    (4097, 8.97)
    """

    def pace(t: float) -> float:
        return math.sqrt(1.0 - beta2**t) / (1.0 - beta1**t)

    ratio = beta1 / math.sqrt(beta2)
    found = [ratio / (1.0 - ratio) * pace(TABULATED_DRIFTS + 1.0 / (1.0 - ratio))]
    for s in range(TABULATED_DRIFTS - 1, -1, -1):
        found.append(ratio * (pace(s + 1) + found[-1]))
    return found[::-1]


def draws_of(firsts: Sequence[FirstValues], device: torch.device) -> Int64[Tensor, "K 3"]:
    """Returns seed, `a` and scale of several tables as kernels read them.

    Floats are stored as bits.
    """
    bits = np.array([(f.a, f.scale) for f in firsts], np.float32).view(np.int32)
    words = [(signed64(f.seed), int(a), int(b)) for f, (a, b) in zip(firsts, bits, strict=True)]
    return torch.tensor(words, dtype=torch.int64, device=device)


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A filter in device memory, see `admission`: its cells and the state of its window.

    `state` holds the turn of the window, the number of ids counted in it, the number of ids without
    a free cell, and the words of `mix_of`, because homes depend on a slot key too.
    """

    cells: Int64[Tensor, "cells"]  # LANES per home
    state: Int64[Tensor, "6"]
    kept: int  # earlier turns that still count
    most: int  # largest count

    @staticmethod
    def make(ids: int, kept: int, most: int, device: torch.device, slot_key: int = 0) -> Cells:
        """Returns an empty filter for this many ids at a load of four fifths."""
        words = [0, 0, 0, *map(signed64, mix_of(slot_key))]
        state = torch.tensor(words, dtype=torch.int64, device=device)
        homes = max(2, -(-ids * 5 // (4 * LANES)))
        cells = torch.zeros(homes * LANES, dtype=torch.int64, device=device)
        return Cells(cells, state, kept, most)

    @property
    def homes(self) -> int:
        """The number of homes."""
        return len(self.cells) // LANES


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """A batch with equal ids side by side. The occurrences of each id are in input order."""

    ids: Int64[Tensor, "n"]  # sorted
    order: Int64[Tensor, "n"] | None  # positions in the input; None: in order, all distinct


def group(ids: Int64[Tensor, "n"]) -> Grouped:
    """Returns the ids grouped by value. Does not block.

    >>> group(torch.tensor([7, 5, 7])).order.tolist()
    [1, 0, 2]
    """
    return Grouped(*torch.sort(ids, stable=True))
