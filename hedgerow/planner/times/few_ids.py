"""How many ids of a call on one table in host memory are done by one thread."""

from __future__ import annotations

FEW_IDS = 8192
"""Calls of fewer ids are: to wake others up takes longer."""


def alone(
    mode: str, ids: float, missed: float, tables: float, id_bytes: float
) -> tuple[float, float]:
    """Of a step: bytes that one thread handles, and tables for which all threads do.

    Tables on the host are asked for all ids, hybrids for those that are not in HBM; rows behind
    caches are always read by all threads.

    >>> alone("HOST_ONLY", 1e5, 1e4, 10.0, 4.0), alone("HYBRID", 1e5, 1e4, 10.0, 4.0)
    ((0.0, 10.0), (40000.0, 0.0))
    """
    counts = {"HOST_ONLY": ids, "HYBRID": missed}
    if mode not in counts:
        return 0.0, 0.0
    asked = counts[mode]
    return (asked * id_bytes, 0.0) if asked < FEW_IDS * tables else (0.0, tables)
