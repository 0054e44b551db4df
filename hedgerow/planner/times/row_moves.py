"""How often rows of two tiers move: each time costs, however few of them do."""

from __future__ import annotations

import math

SPARE, MOST_SPARE = 512, 64
"""Twice the first part of a cache leaves at once; where steps need it more, twice the second."""
MOVE_STEPS, SOON_STEPS, MANY = 16, 2, 5
"""A hybrid looks for hot rows every 16th step; every 2nd where one id of 5 is on the host."""


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
        spare = min(max(each, fast_rows / SPARE), fast_rows / MOST_SPARE)
        return min(1.0, each / (2 * spare)) if spare else 0.0
    if mode == "HYBRID":
        steps = SOON_STEPS if MANY * missed > ids else MOVE_STEPS
        looks = tables / steps * -math.expm1(-missed)  # by the chance that a step misses any
        if moved is None or not looks:
            return looks
        return looks * -math.expm1(-moved / looks)  # by the chance that a look finds any
    return 0.0


def crowded(mode: str, missed: float, tables: float, fast_rows: float) -> float:
    """The `missed` keys, if a cache makes way for them at once.

    A step that misses more than a 64th of a cache tells equal ones among them apart first, and
    waits for others to leave.

    >>> [crowded("CACHING", missed, 10.0, 65536.0) for missed in (10_000.0, 11_000.0)]
    [0.0, 11000.0]
    """
    return missed if mode == "CACHING" and MOST_SPARE * missed > fast_rows * tables else 0.0
