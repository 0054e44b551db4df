"""How often rows of two tiers move: each time costs, however few of them do."""

from __future__ import annotations

import math

LEAVE_AT_ONCE = 32
"""A full cache on a device makes way for this part of its rows, or more if a step needs more."""
MOVE_STEPS, SOON_STEPS, MANY = 16, 2, 5
"""A hybrid looks for hot rows every 16th step; every 2nd where one id of 5 is on the host."""


def moves(mode: str, missed: float, ids: float, tables: float, fast_rows: float) -> float:
    """Times a step that one of its tables moves rows; `missed` keys of all are on the host.

    Of a cache whose rows are not known (infinitely many) none.

    >>> moves("CACHING", 320.0, 1e4, 10.0, 1024.0)  # 32 of each table; 32 leave at once
    10.0
    >>> moves("HYBRID", 320.0, 1e4, 10.0, 1024.0)
    0.625
    """
    if mode == "CACHING":
        return missed / max(missed / tables, 1.0, fast_rows / LEAVE_AT_ONCE)
    if mode == "HYBRID":
        steps = SOON_STEPS if MANY * missed > ids else MOVE_STEPS
        return tables / steps * -math.expm1(-missed)  # by the chance that a step misses any
    return 0.0
