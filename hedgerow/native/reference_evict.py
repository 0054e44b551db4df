"""A plain twin of the core's evictions: which rows leave a dict of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from ..core.use_weights import MARK, MARK_BITS
from .reference_values import at

SLOTS = 2**15


class Row(Protocol):
    """What an eviction reads of a row."""

    time: int
    used_since: bool


R = TypeVar("R", bound=Row)


def is_older(ages_at: int, reference: int, key: int, row: Row) -> bool:
    """Whether a row's age has reached that of its slot."""
    ages = at(ages_at, SLOTS, np.int64)
    return reference - row.time >= int(ages[(key >> 48) & (SLOTS - 1)])


def rank(marks: str, top: int, key: int, row: Row) -> tuple[int, int]:
    """Rows leave in this order: by time, then turn; or by uses, then time; equals by key."""
    if marks == "none":
        return row.time, key
    mark, seconds = row.time & MARK, row.time >> MARK_BITS
    place = 0 if mark == 0 else (mark - top - 1) & MARK
    return (place << 32 | seconds if marks == "uses" else seconds << MARK_BITS | place), key


class RowEvictions:
    """Removes rows by age or by rank; a part of `Rows`, whose dict of rows it shares.

    Answers are (rows gone, cursor, done, room needed).
    """

    def __init__(self, rows: dict[int, Any], marks: str, remove: Callable[[int], object]) -> None:
        self.looked_at = 0  # how often a row was looked at
        self._rows, self._marks, self._remove = rows, marks, remove

    def evict_older(
        self, reference: int, ages_at: int, cursor: int, room: int, ids_at: int, times_at: int
    ) -> tuple[int, int, bool, int]:
        """Removes rows that have reached the age of their slot."""
        doomed = partial(is_older, ages_at, reference)
        return self._evict(doomed, cursor, room, ids_at, times_at)

    def find_cut(self, order: str, budget: int, top: int = 0) -> tuple[int, int, int]:
        """How many rows must leave, and the rank of the last of them."""
        self._check_order(order)
        excess = len(self._rows) - budget
        if excess <= 0:
            return 0, 0, 0
        for row in self._rows.values():
            row.used_since = False
        ranks = sorted(rank(self._marks, top, key, row) for key, row in self._rows.items())
        return excess, *ranks[excess - 1]

    def evict_ranked(
        self,
        order: str,
        excess: int,
        score: int,
        key: int,
        cursor: int,
        room: int,
        ids_at: int,
        times_at: int,
        top: int = 0,
    ) -> tuple[int, int, bool, int]:
        """Removes rows up to a rank, at most `excess` of them."""
        self._check_order(order)
        left = excess

        def leaves(shown: int, row: Any) -> bool:
            nonlocal left
            if not left or row.used_since or rank(self._marks, top, shown, row) > (score, key):
                return False
            left -= 1
            return True

        return self._evict(leaves, cursor, room, ids_at, times_at)

    def _check_order(self, order: str) -> None:
        if order == "use" and self._marks != "uses":
            raise ValueError("this table does not count uses: make it with marks of uses")

    def _evict(
        self,
        doomed: Callable[[int, Row], bool],
        cursor: int,
        room: int,
        ids_at: int,
        times_at: int,
    ) -> tuple[int, int, bool, int]:
        """Removes the doomed among `room` rows from the cursor on."""
        seen = list(self._rows)[cursor : cursor + room]
        self.looked_at += len(seen)
        gone = [(key, self._rows[key].time) for key in seen if doomed(key, self._rows[key])]
        for i, (key, time) in enumerate(gone):
            at(ids_at, room, np.int64)[i] = key
            at(times_at, room, np.int64)[i] = time
            self._remove(key)
        cursor += len(seen) - len(gone)
        return len(gone), cursor, cursor >= len(self._rows), 0
