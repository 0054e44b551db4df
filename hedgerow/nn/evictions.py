"""When a module runs the eviction rules of its tables: after some of its updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..tables.expiry import Eviction, Lfu, Lru, Ttl

if TYPE_CHECKING:
    from ..tables.host import HostTable

# A share of the room, or of the age. A walk over all rows for one row too many would cost more
# than the update; the smaller the share, the more walks, the larger, the longer rows stay.
_SHARE = 8


@runtime_checkable
class SizeBound(Protocol):
    """A table that knows a bound of its size without waiting."""

    def size_at_most(self) -> int:
        """As many rows as there may be."""
        ...


class Evictions:
    """Runs rules where it is time; holds no state of its own, so that a resumed run goes on alike.

    A rule of room waits until a table holds an eighth more than its rows; over ranks every shard
    keeps its share of them. A rule of age runs once
    in an eighth of the age: when the clock has passed from one such period into the next since the
    tables' newest update.
    """

    def __init__(self, tables: Sequence[HostTable], rank: int = 0, ranks: int = 1) -> None:
        self._tables = [table for table in tables if table.config.evict is not None]
        self._rank, self._ranks = rank, ranks

    def __bool__(self) -> bool:
        """Whether any table has a rule."""
        return bool(self._tables)

    def __call__(self, before_s: int, now_s: int) -> None:
        """After an update at `now_s`; `before_s` is the time of the one before."""
        for table in self._tables:
            rule = table.config.evict
            rows = self._share(rule.rows) if isinstance(rule, Lru | Lfu) else None
            if _is_due(rule, table, rows, before_s, now_s):
                _ = table.evict() if rows is None else table.evict(rows=rows)

    def _share(self, rows: int) -> int:
        """What this rank's shard may keep of the rows that all shards together may keep."""
        return max(1, rows // self._ranks + (self._rank < rows % self._ranks))


def _is_due(
    rule: Eviction | None, table: HostTable, rows: int | None, before_s: int, now_s: int
) -> bool:
    if rows is not None:
        most = rows + rows // _SHARE
        # Counting the rows of a table on a device waits for it.
        may_be = table.size_at_most() if isinstance(table, SizeBound) else table.size()
        return may_be > most and table.size() > most
    if isinstance(rule, Ttl):
        period_s = max(1, rule.shortest_s() // _SHARE)
        return before_s // period_s != now_s // period_s
    return False
