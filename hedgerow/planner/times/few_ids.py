"""How many ids of a step the host handles, and how many of them one thread does."""

from __future__ import annotations

from typing import NamedTuple

FEW_IDS = 8192
"""Calls of fewer ids on one table are done by one thread: to wake others up takes longer."""


class HostIds(NamedTuple):
    """Of a step: ids whose vectors the host handles; those that one thread does, table by table;
    how often all threads must be woken up to help."""

    handled: float
    alone: float
    pools: float


def host_ids(mode: str, ids: float, missed: float, tables: float) -> HostIds:
    """Of a mode, of tables alike.

    Tables on the host are asked for all ids, two tiers for the `missed` keys that are not in HBM;
    rows behind caches are always read by all threads. Tables on the host copy their vectors in
    between, and threads fall asleep; those of a hybrid follow one another.

    >>> host_ids("HOST_ONLY", 1e5, 1e4, 10.0)
    HostIds(handled=100000.0, alone=0.0, pools=10.0)
    >>> host_ids("HYBRID", 1e5, 1e4, 10.0), host_ids("HYBRID", 1e6, 1e5, 10.0).pools
    (HostIds(handled=10000.0, alone=10000.0, pools=0.0), 1.0)
    """
    if mode == "HBM_ONLY":
        return HostIds(0.0, 0.0, 0.0)
    handled = missed if mode in ("HYBRID", "CACHING") else ids
    if mode == "CACHING":
        return HostIds(handled, 0.0, 0.0)
    if handled < FEW_IDS * tables:
        return HostIds(handled, handled, 0.0)
    return HostIds(handled, 0.0, 1.0 if mode == "HYBRID" else tables)
