"""All tables at one instant: their rows, and what their filters have counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ...core.shapes import Bool, Int64
from ..config import TableConfig
from ..expiry import Ttl, expired
from ..own_rows import Held, OwnRows
from ..store import Entries
from .filter_blobs import ALONE, Place, dump_filters, filter_blobs
from .order_blobs import dump_orders, order_blobs


class Saveable(Protocol):
    """A table that can be saved."""

    config: TableConfig

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices."""
        ...

    def size(self) -> int:
        """Rows."""
        ...

    def max_ts(self) -> int:
        """The newest time."""
        ...


@dataclass(frozen=True, slots=True)
class FrozenTable:
    """The rows of a table as they were, those left out that had expired by its rule."""

    rows: Held | Saveable
    size: int
    newest_s: int
    rule: Ttl | None
    slot_key: int | None = None  # of a table of this process

    def keep(self, ids: Int64[Tensor, "n"], ts: Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Which rows have not expired at the newest time."""
        return ~expired(ids, ts, self.newest_s, self.rule)


@dataclass(frozen=True, slots=True)
class Frozen:
    """All tables by name, and their filters and orders as named bytes."""

    tables: dict[str, FrozenTable]
    blobs: dict[str, bytes]


def freeze(
    tables: Mapping[str, Saveable],
    held: ExitStack,
    at_instant: Callable[[dict[str, FrozenTable]], None],
    place: Place = ALONE,
) -> Frozen:
    """Holds the tables as they are now until `held` is closed; training goes on.

    Writers of other threads wait while the snapshots are opened, filters copied and `at_instant`
    runs, so that all are of one instant. Tables that give no snapshots are read as they will be.
    """
    found: dict[str, FrozenTable] = {}
    snapshots: list[Held] = []
    try:
        for name, table in tables.items():
            rule = table.config.evict if isinstance(table.config.evict, Ttl) else None
            if isinstance(table, OwnRows):
                snapshot = table.snapshot(paused=True)
                held.enter_context(snapshot)
                snapshots.append(snapshot)
                found[name] = FrozenTable(
                    snapshot, snapshot.size, snapshot.max_ts, rule, table.slot_key
                )
            else:
                found[name] = FrozenTable(table, table.size(), table.max_ts(), rule)
        at_instant(found)
        filters, orders = dump_filters(tables.values()), dump_orders(tables)
    finally:
        for snapshot in snapshots:
            snapshot.resume()
    return Frozen(found, {**filter_blobs(filters, place), **order_blobs(orders, place)})
