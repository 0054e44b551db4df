"""The interface of a table that this process holds, as checkpoints and statistics use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.errors import DtypeError
from ..core.shapes import Int64
from .admission import FilterMeta, FilterState
from .changes import TouchedBatch, TouchedSettings
from .config import TableConfig
from .eviction import EvictionOrder
from .store import Applied, Entries


class TableSnapshot(Protocol):
    """All rows of a table at one instant."""

    size: int
    max_ts: int

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """The rows, in slices in host memory."""
        ...

    def resume(self) -> None:
        """Lets writers go on."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class SavableFilter(Protocol):
    """A filter: counts of ids that can be taken along."""

    def meta(self) -> FilterMeta:
        """Its settings."""
        ...

    def dump(self) -> FilterState:
        """All of it."""
        ...

    def restore(self, state: FilterState) -> None:
        """Puts back what `dump` gave."""
        ...


class TouchedConsumer(Protocol):
    """One consumer's touched keys."""

    settings: TouchedSettings
    since: str | None
    delivering: threading.Lock

    def take(self) -> TouchedBatch:
        """The keys changed since the last take."""
        ...

    def give_back(self, taken: Any) -> None:
        """Puts keys back, for the next take."""
        ...

    def close(self) -> None:
        """Stops collecting."""
        ...


@runtime_checkable
class LocalTable(Protocol):
    """A `HostTable` or a `DeviceTable`."""

    config: TableConfig

    @property
    def device(self) -> torch.device:
        """Where its rows lie."""
        ...

    @property
    def filter(self) -> Any:
        """What counts ids for its admission rule: a `SavableFilter`, or None."""
        ...

    @property
    def slot_key(self) -> int:
        """The secret by which it places ids."""
        ...

    def use_slot_key(self, slot_key: int) -> None:
        """Places ids by this key from now on, while there are no rows."""
        ...

    @property
    def order(self) -> EvictionOrder | None:
        """What tells the order in which rows leave; None without a rule of room."""
        ...

    def entries(self, keys: Int64[Tensor, "n"]) -> Entries:
        """Whole rows."""
        ...

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices."""
        ...

    def size(self) -> int:
        """Rows."""
        ...

    def max_ts(self) -> int:
        """The newest time."""
        ...

    def stats(self) -> dict[str, float]:
        """Everything counted."""
        ...

    def snapshot(self, *, paused: bool = False) -> TableSnapshot:
        """All rows as they are when this returns."""
        ...

    def consumer(self, name: str) -> TouchedConsumer | None:
        """The consumer of touched keys that is open under a name."""
        ...

    def touched(self, consumer: str, *, all_changes: bool = False) -> TouchedConsumer:
        """A consumer of touched keys."""
        ...

    def restore(self, entries: Entries) -> Applied:
        """Puts whole rows back."""
        ...

    def beside(self, rows: int, *, slot_key: int | None = None) -> Any:
        """An empty table of its kind to exchange rows with, and the slot key."""
        ...

    def exchange_rows(self, other: Any) -> None:
        """Swaps all rows with a table of its kind."""
        ...

    def clear(self) -> None:
        """Removes all rows."""
        ...


_PARTS = ("index", "row", "slack", "other", "output")

TableStats = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes a table takes."""

    index_bytes: int
    row_bytes: int  # live rows and their stamps
    slack_bytes: int  # rows kept for new ids, and padding
    other_bytes: int = 0  # parts of pages, changed keys, snapshots, filters, kept outputs

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.index_bytes + self.row_bytes + self.slack_bytes + self.other_bytes


def table_stats(table: LocalTable) -> TableStats:
    """Name, rows, bytes, load and counts of a table, ready for a log or for JSON.

    Bytes are those of the index, of live rows with their time stamps, of slack (room kept for new
    ids, and padding), of others (parts of pages, changed keys, snapshots, filters), of outputs that
    are not in use, kept for the next lookup, and of all together. Working memory that threads keep
    for their next calls, about 45 bytes per id of the largest one, is among others: each table
    counts its part.
    `uncompressed_bytes` is what the rows would take as fp32 without optimizer state. `load_factor`
    is the filled part of the index, `longest_search` the most buckets a search visits. Counts are
    since the table was made.
    """
    if not isinstance(table, LocalTable):
        raise DtypeError(f"stats of a {type(table).__name__}; pass a HostTable or a DeviceTable.")
    counted = table.stats()
    parts = (int(counted[f"{part}_bytes"]) for part in _PARTS)
    return {"name": table.config.name, **counted, "total_bytes": sum(parts)}
