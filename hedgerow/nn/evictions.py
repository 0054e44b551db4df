"""When a module runs the eviction rules of its tables: after some of its updates."""

from __future__ import annotations

from collections.abc import Sequence

from ..tables.expiry import Eviction, Lfu, Lru, Ttl
from ..tables.host import HostTable

# A share of the room, or of the age. A walk over all rows for one row too many would cost more
# than the update; the smaller the share, the more walks, the larger, the longer rows stay.
_SHARE = 8


class Evictions:
    """Runs rules where it is time; holds no state of its own, so that a resumed run goes on alike.

    A rule of room waits until a table holds an eighth more than its rows. A rule of age runs once
    in an eighth of the age: when the clock has passed from one such period into the next since the
    tables' newest update.
    """

    def __init__(self, tables: Sequence[HostTable]) -> None:
        self._tables = [table for table in tables if table.config.evict is not None]

    def __call__(self, before_s: int, now_s: int) -> None:
        """After an update at `now_s`; `before_s` is the time of the one before."""
        for table in self._tables:
            if _is_due(table.config.evict, table, before_s, now_s):
                table.evict()


def _is_due(rule: Eviction | None, table: HostTable, before_s: int, now_s: int) -> bool:
    if isinstance(rule, Lru | Lfu):
        return table.size() > rule.rows + rule.rows // _SHARE
    if isinstance(rule, Ttl):
        period_s = max(1, rule.shortest_s() // _SHARE)
        return before_s // period_s != now_s // period_s
    return False
