"""A plain twin of the core's evictions: which rows leave a dict of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from .reference_values import at

SLOTS = 2**15


class Row(Protocol):
    """What an eviction reads of a row, and the count it may halve."""

    time: int
    uses: int
    used_since: bool


R = TypeVar("R", bound=Row)


def is_older(ages_at: int, reference: int, key: int, row: Row) -> bool:
    """Whether a row's age has reached that of its slot."""
    ages = at(ages_at, SLOTS, np.int64)
    return reference - row.time >= int(ages[(key >> 48) & (SLOTS - 1)])


def rank(order: str, key: int, row: Row) -> tuple[int, int]:
    """Rows leave in this order: by time, or by uses and then time; equals by key."""
    if order == "time":
        return row.time, key
    return (row.uses << 48) | min(row.time, 2**48 - 1), key


def find_cut(order: str, rows: dict[int, R], budget: int) -> tuple[int, int, int]:
    """How many rows must leave, and the rank of the last of them."""
    for row in rows.values() if order == "use" else ():
        row.used_since = False
    excess = len(rows) - budget
    if excess <= 0:
        return 0, 0, 0
    return excess, *sorted(rank(order, key, row) for key, row in rows.items())[excess - 1]


def ranked(order: str, excess: int, score: int, key: int) -> Callable[[int, Row], bool]:
    """Says which rows, shown one by one, leave; by use, halves the counts of the others."""
    left = excess

    def leaves(shown: int, row: Row) -> bool:
        nonlocal left
        used = order == "use" and row.used_since
        if left and not used and rank(order, shown, row) <= (score, key):
            left -= 1
            return True
        if order == "use":
            row.uses //= 2
        return False

    return leaves


class Evictions:
    """What `Table` lets go of. Answers are (rows gone, cursor, done, room needed)."""

    _rows: dict[int, Any]

    def _remove(self, key: int) -> bool:
        raise NotImplementedError

    def evict_older(
        self, reference: int, ages_at: int, cursor: int, room: int, ids_at: int, times_at: int
    ) -> tuple[int, int, bool, int]:
        """Removes rows that have reached the age of their slot."""
        doomed = partial(is_older, ages_at, reference)
        return self._evict(doomed, cursor, room, ids_at, times_at)

    def find_cut(self, order: str, budget: int) -> tuple[int, int, int]:
        """How many rows must leave, and the rank of the last of them."""
        return find_cut(order, self._rows, budget)

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
    ) -> tuple[int, int, bool, int]:
        """Removes rows up to a rank, at most `excess` of them."""
        doomed = ranked(order, excess, score, key)
        return self._evict(doomed, cursor, room, ids_at, times_at)

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
        gone = [(key, self._rows[key].time) for key in seen if doomed(key, self._rows[key])]
        for i, (key, time) in enumerate(gone):
            at(ids_at, room, np.int64)[i] = key
            at(times_at, room, np.int64)[i] = time
            self._remove(key)
        cursor += len(seen) - len(gone)
        return len(gone), cursor, cursor >= len(self._rows), 0
