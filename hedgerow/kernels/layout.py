"""How a table lies in device memory: its arrays, and the numbers that kernels and twins share."""

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

LANES = 16  # ids of a bucket: 128 bytes, what the memory moves at once
# An id goes to its second bucket only when this much of its first is taken. Of 20,000 buckets at
# 0.5 / 0.75 / 0.85 / 0.9 full, 1.6 / 9.7 / 13 / 14 % of the ids are then in their second bucket
# (with 0: 32 %), and 0 / 0 / 1e-5 / 8e-4 find no room (with 16: 0 / 2e-3 / 1e-2 / 2e-2).
HOME_LANES = 12
# The lines of a bucket. By default rows are scored by their times; the last line says.
KEYS, TIMES, SCORES = 0, 1, -1
# What a place holds that was never used, and one whose id was erased: whoever looks for an id may
# stop at the former but not at the latter. The ids with these values are as legal as any others:
# each lives in a place of its own behind the buckets. Any patterns serve; random ones will hardly
# meet a real id.
EMPTY = signed64(0xA3C59AC2F0B1E6D7)
ERASED = signed64(0x5D1B0E7743C8F2A9)
TAKEN = ~EMPTY  # what the place of such an id holds once the id has a row
NEWBORN = -1  # time and score of a place without a row, or whose row is not set yet
# Gradients of one id are added in input order; from this many on in pieces of as many, each added
# in order and then the pieces in order. So an id that fills the batch is not added up by one
# program alone, and the order depends on the id's own occurrences and on nothing else.
PIECE = 256
SHORT = 32  # up to so many occurrences are added where the row is updated, more before
SCORE = 2**48 - 1  # what a word of scores may hold, see `scores`
STAMP = 2**63 - 1  # what a word of times may hold, where no scores are among them
# The weights of uses in `scores`, and the marks in stamps: see `csrc/evict.h`.
MARK, FRACTION = 2**31 - 1, 14
AHEAD = 32 << FRACTION
# What became of an id that `insert_and_evict` was given.
INSERTED, RECLAIMED, ASSIGNED, EVICTED, BUSY, NOT_ASKED = 0, 1, 2, 3, 5, 7
# The numbers of an update rule, see `rules`: room for settings, then for the starts of states.
SETTINGS, STARTS = 8, 4
NO_STEP = -1  # the step of an update that was given none, as csrc/optimizer.h
TABULATED_DRIFTS = 2**12  # as csrc/rules_adam.h
# The finalizer of splitmix64: other constants and shifts than the router's mixer, whose bits would
# leave buckets of an owner's table unreachable.
MIX_START = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MIX = 3  # words that say what the slot key of a table or filter makes of these three, see `mix_of`
_ALL = 2**64 - 1


def mixed(x: int, add: int = 0, by_1: int = 0, by_2: int = 0) -> int:
    """The hash of a number, by the words of `mix_of`; without them the one that everybody knows.

    >>> mixed(0) == mixed(0, *mix_of(0)), mixed(0) == mixed(0, *mix_of(1))
    (True, False)
    """
    x = (x + (MIX_START + add)) & _ALL
    x = (x ^ (x >> 30)) * (MIX_1 ^ by_1) & _ALL
    x = (x ^ (x >> 27)) * (MIX_2 ^ by_2) & _ALL
    return x ^ (x >> 31)


def mix_of(slot_key: int) -> tuple[int, int, int]:
    """What a slot key adds to the start of the mixer, and which bits of its factors it changes.

    The factors stay odd. Of key 0 nothing changes. They follow from the key by hashes, so that no
    pair of ids meets under most keys.

    >>> mix_of(0), [word % 2 for word in mix_of(7)[1:]]
    ((0, 0, 0), [0, 0])
    """
    if slot_key == 0:
        return 0, 0, 0
    first, second = mixed(slot_key), mixed(slot_key ^ MIX_1)
    return slot_key, first << 1 & _ALL, second << 1 & _ALL


def turned(words: Sequence[int], device: torch.device) -> Int64[Tensor, "words"]:
    """Words with their bits turned: of key 0 they look like places without a row."""
    return torch.tensor([~signed64(word) for word in words], device=device)


def padded(floats: int) -> int:
    """Floats from one row to the next for rows of this many.

    Rows that begin at lines of 128 bytes, or at least at sectors of 32, are read and written in
    whole ones: an update whose rows straddled lines took a third longer. Where that would take more
    than a sixth of the memory, 16 bytes do.

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
    """A table in device memory; a slot is the number of a place.

    Bucket b has the slots from `b * LANES`, and behind the buckets stand two, those of the ids
    `EMPTY` and `ERASED`. A bucket is a line of keys, a line of times and, if rows are `scored` by
    something else than time, a line of scores, one behind the other: whoever has looked for an id
    has the time of its row near.

    Where ids are placed depends on the slot key. What it makes of the mixer stands, with its bits
    turned, in the last words of the line of times behind the buckets: kernels find it there.
    """

    index: Int64[Tensor, "buckets+1 lines lanes"]
    values: Float32[Tensor, "slots stride"]  # a row, then its states; see `padded`
    dim: int
    pins: Int32[Tensor, "slots"] | None = None  # how often each row is held; None = never
    spans: Int64[Tensor, "K 2"] | None = None  # of several tables: first bucket, buckets of each
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
        """An empty table whose rows have `states` floats behind them."""
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
        """Empty tables of so many buckets each, for kernels that serve all of them at once.

        Each has its own two places of special ids; `splits` say which keys of a batch are whose.
        """
        firsts = [0, *accumulate(count + 1 for count in buckets)]
        spans = torch.tensor(list(zip(firsts, buckets, strict=False)), device=device)
        return replace(Arrays.make(firsts[-1] - 1, dim, device, states), spans=spans)

    @property
    def buckets(self) -> int:
        """How many; of several tables with those between them."""
        return self.index.shape[0] - 1

    @property
    def tables(self) -> int:
        """How many."""
        return 1 if self.spans is None else self.spans.shape[0]

    @property
    def lines(self) -> int:
        """Lines of a bucket."""
        return self.index.shape[1]

    @property
    def stride(self) -> int:
        """Floats from one row to the next."""
        return self.values.shape[1]

    def line(self, line: int) -> Int64[Tensor, "slots"]:
        """A copy of KEYS, TIMES or SCORES of all slots; the latter say nothing without a row."""
        words = self.index[:, line].flatten()[: len(self.values)]
        return words if line == KEYS else words & self.bits(line)

    def bits(self, line: int) -> int:
        """Which bits of the words of TIMES or SCORES hold the time or the score."""
        return STAMP if self.marked and line == TIMES else SCORE

    def read(self, line: int, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """KEYS, TIMES or SCORES of these slots."""
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
        """Slots as the arrays number them; kernels number those of several tables within each.

        `splits` say where the slots of each table begin and end; -1 stays.
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
        """Slots within their tables, from slots as the arrays number them; -1 stays."""
        slots = numbered.long()
        if self.spans is None:
            return slots
        at = torch.arange(len(slots), device=slots.device)
        first = self.spans[torch.bucketize(at, splits[1:-1], right=True), 0]
        return torch.where(slots >= 0, slots - first * LANES, slots)

    def place_by(self, slot_key: int) -> None:
        """Places the ids of this one table by another key; it must be empty."""
        self.index[-1, TIMES, -MIX:] = turned(mix_of(slot_key), self.index.device)

    def mix(self) -> tuple[int, int, int]:
        """The words of `mix_of` of this one table; waits for the device."""
        add, by_1, by_2 = (~self.index[-1, TIMES, -MIX:]).tolist()
        return add & _ALL, by_1 & _ALL, by_2 & _ALL

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of keys and times, and of rows."""
        return self.index.nbytes, self.values.nbytes

    def clear(self, when: Bool[Tensor, ""] | None = None) -> None:
        """Takes all ids of this one table out, or does so if the device says `when`."""
        always = torch.ones((), dtype=torch.bool, device=self.index.device)
        mix = self.index[-1, TIMES, -MIX:].clone()
        self.index.masked_fill_(always if when is None else when, NEWBORN)
        self.index[:, KEYS].masked_fill_(always if when is None else when, EMPTY)
        self.index[-1, TIMES, -MIX:] = mix

    def taken(self) -> Bool[Tensor, "slots"]:
        """Which slots have a row."""
        keys = self.line(KEYS)
        return (keys != EMPTY) & (keys != ERASED)

    def ids(self, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """The ids of the rows in these slots."""
        if self.spans is None:
            special = slots >= self.buckets * LANES
        else:
            special = torch.isin(slots // LANES, self.spans.sum(dim=1))
        first = slots % LANES == 0
        ids = torch.where(special & first, EMPTY, self.read(KEYS, slots))
        return torch.where(special & ~first, ERASED, ids)


@dataclass(frozen=True, slots=True)
class FirstValues:
    """What new rows start from, as numbers."""

    kind: str  # constant, uniform, normal or truncated_normal
    a: float  # value, low or mean
    b: float  # nothing, high or deviation
    seed: int  # 0..2**64-1

    @property
    def scale(self) -> float:
        """What a draw is multiplied with, rounded to float32 as the core does."""
        if self.kind != "uniform":
            return self.b
        return float(np.float32(self.b) - np.float32(self.a))


@dataclass(frozen=True, slots=True, eq=False)
class RowSegment:
    """One segment of the rows: where it lies, what new rows start from, how it learns."""

    start: int  # its first column
    dim: int
    state: int  # the first column of its states
    first: FirstValues
    rule: str
    # On the device: settings of the rule, starts of its states, and for dense Adam its drifts.
    numbers: Float64[Tensor, "12+"]
    draws: Int64[Tensor, "K 3"] | None = None  # of several tables: see `draws_of`; None = `first`

    @staticmethod
    def numbers_of(
        settings: Sequence[float],
        starts: Sequence[float],
        device: torch.device,
        drifts: Sequence[float] = (),
    ) -> Float64[Tensor, "12+"]:
        """Settings, starts of the states and drifts as a kernel reads them."""
        filled = torch.zeros(SETTINGS + STARTS + len(drifts), dtype=torch.float64)
        filled[: len(settings)] = torch.tensor(settings, dtype=torch.float64)
        filled[SETTINGS : SETTINGS + len(starts)] = torch.tensor(starts, dtype=torch.float64)
        filled[SETTINGS + STARTS :] = torch.tensor(drifts, dtype=torch.float64)
        return filled.to(device)


def drifts(beta1: float, beta2: float) -> list[float]:
    """How far a row of dense Adam moves after each of its first updates without another gradient.

    In units of rate * first moment / root of the second, see csrc/rules_adam.h.

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
    """Seed, `a` and scale of several tables as a kernel reads them: the floats as their bits."""
    bits = np.array([(f.a, f.scale) for f in firsts], np.float32).view(np.int32)
    words = [(signed64(f.seed), int(a), int(b)) for f, (a, b) in zip(firsts, bits, strict=True)]
    return torch.tensor(words, dtype=torch.int64, device=device)


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A filter in device memory, see `count_ids`: cells, and where its window stands.

    `state` is the turn of the window, the ids counted in it, those that found no cell, and the
    words of `mix_of`: where ids are counted depends on a slot key, too.
    """

    cells: Int64[Tensor, "cells"]  # LANES of every home
    state: Int64[Tensor, "6"]
    kept: int  # turns before the present one that still count
    most: int  # where counts stop

    @staticmethod
    def make(ids: int, kept: int, most: int, device: torch.device, slot_key: int = 0) -> Cells:
        """An empty filter with room for so many ids, at four fifths of its cells."""
        words = [0, 0, 0, *map(signed64, mix_of(slot_key))]
        state = torch.tensor(words, dtype=torch.int64, device=device)
        homes = max(2, -(-ids * 5 // (4 * LANES)))
        cells = torch.zeros(homes * LANES, dtype=torch.int64, device=device)
        return Cells(cells, state, kept, most)

    @property
    def homes(self) -> int:
        """How many."""
        return len(self.cells) // LANES


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """A batch with equal ids side by side, the occurrences of each in input order."""

    ids: Int64[Tensor, "n"]  # sorted
    order: Int64[Tensor, "n"] | None  # where each came from; None: as they came, all different


def group(ids: Int64[Tensor, "n"]) -> Grouped:
    """Equal ids side by side, without asking the device how many there are.

    >>> group(torch.tensor([7, 5, 7])).order.tolist()
    [1, 0, 2]
    """
    return Grouped(*torch.sort(ids, stable=True))
