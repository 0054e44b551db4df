"""Plain twins of the core's admission: exact counts in dicts, one id after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .reference_values import at, philox

_CHANCE = 2  # the stream
_SLOT_BITS, _SIGNATURE_BITS = 15, 48
Shape = tuple[int, int, int]
_CELL = np.dtype([("table", "<u8"), ("id", "<i8"), ("count", "<i8")])  # of a dump


@dataclass
class SlidingFilter:
    """A ring of dicts from (table, id) to count. It has no collisions and no lack of cells."""

    capacity: int
    parts: int
    seed: int
    max_count: int
    key: int = 0  # of no importance: nothing is hashed here
    _arrays: list[dict[tuple[int, int], int]] = field(default_factory=list)
    _head_increment: int = 0

    def __post_init__(self) -> None:
        self._arrays = [{} for _ in range(self.parts)]

    def _behind(self, arrays: int) -> dict[tuple[int, int], int]:
        return self._arrays[(self._head_increment - arrays) % self.parts]

    def _count(self, key: tuple[int, int]) -> int:
        alive = min(self._head_increment, self.parts - 2) + 1
        return next((self._behind(b)[key] for b in range(alive) if key in self._behind(b)), 0)

    def add(self, table: int, key: int, n: int) -> int:
        """Counts an id and gives its count before."""
        before, head = self._count((table, key)), self._behind(0)
        head[table, key] = min(self.max_count, before + n)
        if len(head) + 1 >= self.capacity // (self.parts - 1):
            self._head_increment += 1
            self._behind(-1).clear()
        return before

    def add_many(self, table: int, ids_at: int, counts_at: int, n: int, before_at: int) -> None:
        """Counts ids in order."""
        counts = at(counts_at, n, np.int64) if counts_at else np.ones(n, np.int64)
        before = at(before_at, n, np.uint8)
        for i, (key, count) in enumerate(
            zip(at(ids_at, n, np.int64).tolist(), counts.tolist(), strict=True)
        ):
            before[i] = self.add(table, key, count)

    def count_many(self, table: int, ids_at: int, n: int, out_at: int) -> None:
        """The counts of ids."""
        at(out_at, n, np.uint8)[:] = [
            self._count((table, key)) for key in at(ids_at, n, np.int64).tolist()
        ]

    def dump(self, room: int, out_at: int) -> tuple[int, int, int, int, list[Shape]]:
        """Key, head, advances, failures and the shape of each array; cells if they fit."""
        parts = [
            np.array([(t, k, count) for (t, k), count in array.items()], _CELL)
            for array in self._arrays
        ]
        cells = np.concatenate(parts)
        if cells.nbytes <= room:
            at(out_at, len(cells), _CELL)[:] = cells
        shapes = [(_CELL.itemsize, len(part), len(part)) for part in parts]
        return self.key, self._head_increment % self.parts, self._head_increment, 0, shapes

    def restore(
        self,
        key: int,
        head: int,
        head_increment: int,
        failures: int,
        arrays: Sequence[Shape],
        from_at: int,
        bytes: int,
    ) -> None:
        """Puts back what `dump` gave."""
        del head, failures
        if len(arrays) != self.parts:
            raise ValueError(f"{len(arrays)} arrays do not fit a filter of {self.parts}")
        cells = iter(at(from_at, bytes // _CELL.itemsize, _CELL).tolist())
        self._arrays = [
            {(t, k): count for t, k, count in (next(cells) for _ in range(size))}
            for _, _, size in arrays
        ]
        self.key, self._head_increment = key, head_increment


class Admission:
    """Which absent ids may have a row."""

    def admits(self, key: int, occurrences: int, step: int, number: int = 0) -> bool:
        """Whether a sighting, the call's `number`-th of the id, lets it in."""
        raise NotImplementedError

    def ask(self, ids_at: int, counts_at: int, n: int, step: int, admitted_at: int) -> None:
        """Every id on its own, in order."""
        counts = at(counts_at, n, np.int64) if counts_at else np.ones(n, np.int64)
        admitted = at(admitted_at, n, np.bool_)
        for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
            admitted[i] = self.admits(key, int(counts[i]), step)


def _of_slot(key: int, standard: float, slots: Sequence[tuple[int, float]]) -> float:
    return dict(slots).get((key >> _SIGNATURE_BITS) & ((1 << _SLOT_BITS) - 1), standard)


@dataclass
class CountAdmission(Admission):
    """Lets an id in that was counted `threshold` times before."""

    filter: SlidingFilter
    table: int
    threshold: float
    slots: Sequence[tuple[int, float]]

    def admits(self, key: int, occurrences: int, step: int, number: int = 0) -> bool:
        """By the count before."""
        threshold = _of_slot(key, self.threshold, self.slots)
        return threshold <= 0 or self.filter.add(self.table, key, occurrences) >= threshold


def admission_probability(form: str, parameter: float, occurrences: int) -> float:
    """How likely so many occurrences let an absent id in."""
    if form == "each":
        return 1 - math.pow(1 - parameter, occurrences)
    if form not in ("unequal", "equal"):
        raise ValueError(f"form is {form!r}; it must be 'each', 'unequal' or 'equal'")
    if parameter <= 0:
        return 1.0
    if form == "unequal":
        return min(1.0, occurrences / parameter)
    return 1 - math.pow(0.05, occurrences / parameter)


@dataclass
class ChanceAdmission(Admission):
    """Lets an id in by a draw from (seed, id, step, number)."""

    form: str
    seed: int
    parameter: float
    slots: Sequence[tuple[int, float]]

    def admits(self, key: int, occurrences: int, step: int, number: int = 0) -> bool:
        """By the draw."""
        low, high = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
        tag = (_CHANCE | step << 8) & 0xFFFFFFFF
        word = philox((low, high, number, tag), (self.seed & 0xFFFFFFFF, self.seed >> 32))[0]
        parameter = _of_slot(key, self.parameter, self.slots)
        return (word >> 8) * 2.0**-24 < admission_probability(self.form, parameter, occurrences)
