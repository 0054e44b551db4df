"""How often rows of two tiers move: each time costs, however few of them do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

N = TypeVar("N", float, NDArray[np.float64])
"""Of one step, or a column of them."""
SPARE, STEPS_SPARE, MOST_SPARE = 512, 4, 64
"""Twice the first part of a cache leaves at once, or what twice so many steps need; at most twice
the last part."""
MOVE_STEPS, SOON_STEPS, MANY = 16, 2, 5
"""A hybrid looks for hot rows every 16th step; every 2nd where one id of 5 is on the host."""


@dataclass(frozen=True, slots=True)
class RowMoves(Generic[N]):
    """Of a step: times that a hybrid looks for hot rows, and that rows move; keys for which a cache
    makes way at once."""

    looks: N
    moves: N
    crowded: N


NO_MOVES = RowMoves(0.0, 0.0, 0.0)


def row_moves(
    mode: str,
    missed: float,
    ids: float,
    tables: float,
    fast_rows: float,
    moved: float | None = None,
) -> RowMoves[float]:
    """All of it, as the functions below have it.

    >>> row_moves("CACHING", 320.0, 1e4, 10.0, 65536.0)
    RowMoves(looks=0.0, moves=0.125, crowded=0.0)
    """
    return RowMoves(
        looks(mode, missed, ids, tables),
        moves(mode, missed, ids, tables, fast_rows, moved),
        crowded(mode, missed, tables, fast_rows),
    )


def looks(mode: str, missed: float, ids: float, tables: float) -> float:
    """Times a step that a hybrid looks for hot rows, table by table; `missed` keys of all tables
    are on the host.

    >>> looks("HYBRID", 320.0, 1e4, 10.0), looks("HYBRID", 3200.0, 1e4, 10.0)
    (0.625, 5.0)
    """
    if mode != "HYBRID":
        return 0.0
    steps = SOON_STEPS if MANY * missed > ids else MOVE_STEPS
    return tables / steps * -math.expm1(-missed)  # by the chance that a step misses any


def moves(
    mode: str,
    missed: float,
    ids: float,
    tables: float,
    fast_rows: float,
    moved: float | None = None,
) -> float:
    """Times a step that rows move; `missed` keys of all tables are on the host.

    Those of a hybrid do so table by table, those of caches together. Of a cache whose rows are not
    known (infinitely many) none. A hybrid that looks for hot rows finds some, unless so many
    rows as `moved` a step are said to have come.

    >>> moves("CACHING", 320.0, 1e4, 10.0, 65536.0)  # 32 of each table; 256 leave at once
    0.125
    >>> moves("HYBRID", 320.0, 1e4, 10.0, 1024.0)
    0.625
    >>> moves("HYBRID", 320.0, 1e4, 10.0, 1024.0, moved=0.0)
    0.0
    """
    if mode == "CACHING":
        each = missed / tables
        spare = min(max(STEPS_SPARE * each, fast_rows / SPARE), fast_rows / MOST_SPARE)
        return min(1.0, each / (2 * spare)) if spare else 0.0
    often = looks(mode, missed, ids, tables)
    if moved is None or not often:
        return often
    return often * -math.expm1(-moved / often)  # by the chance that a look finds any


def crowded(mode: str, missed: float, tables: float, fast_rows: float) -> float:
    """The `missed` keys for which a cache must make way at once: beyond a 64th of it.

    >>> [crowded("CACHING", missed, 10.0, 65536.0) for missed in (10_000.0, 11_000.0)]
    [0.0, 760.0]
    """
    return max(0.0, missed - fast_rows * tables / MOST_SPARE) if mode == "CACHING" else 0.0
