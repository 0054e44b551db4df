"""The interface of a table that this process holds, for checkpoints and statistics."""

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
        """Yields the rows, in slices in host memory."""
        ...

    def resume(self) -> None:
        """Lets waiting writers continue."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class SavableFilter(Protocol):
    """An admission filter whose counts can be saved."""

    def meta(self) -> FilterMeta:
        """Returns the description of the state, without its arrays."""
        ...

    def dump(self) -> FilterState:
        """Returns the whole state."""
        ...

    def restore(self, state: FilterState) -> None:
        """Restores a state that `dump` returned."""
        ...


class TouchedConsumer(Protocol):
    """The touched keys of one consumer."""

    settings: TouchedSettings
    since: str | None
    delivering: threading.Lock

    def take(self) -> TouchedBatch:
        """Returns and forgets the keys changed since the last take."""
        ...

    def give_back(self, taken: Any) -> None:
        """Gives keys back; the next take returns them."""
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
        """The device of the rows."""
        ...

    @property
    def filter(self) -> Any:
        """The filter that counts ids for the admission rule: a `SavableFilter`, or None."""
        ...

    @property
    def slot_key(self) -> int:
        """The secret that determines the slots of ids."""
        ...

    def use_slot_key(self, slot_key: int) -> None:
        """Places ids by this key from now on; raises if the table has rows."""
        ...

    @property
    def order(self) -> EvictionOrder | None:
        """The eviction order of rows; None without an `Lru` or `Lfu` rule."""
        ...

    def entries(self, keys: Int64[Tensor, "n"]) -> Entries:
        """Returns whole rows."""
        ...

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows, in slices."""
        ...

    def size(self) -> int:
        """Returns the number of rows."""
        ...

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes."""
        ...

    def stats(self) -> dict[str, float]:
        """Returns rows, bytes, load and all counters."""
        ...

    def snapshot(self, *, paused: bool = False) -> TableSnapshot:
        """Returns all rows as they are at this call."""
        ...

    def consumer(self, name: str) -> TouchedConsumer | None:
        """Returns the open change feed with this name, or None."""
        ...

    def touched(self, consumer: str, *, all_changes: bool = False) -> TouchedConsumer:
        """Returns the change feed of a consumer, opened if it is not."""
        ...

    def restore(self, entries: Entries) -> Applied:
        """Writes whole rows back."""
        ...

    def beside(self, rows: int, *, slot_key: int | None = None) -> Any:
        """Returns an empty table of the same kind, to exchange rows and slot keys with."""
        ...

    def exchange_rows(self, other: Any) -> None:
        """Swaps all rows with a table of the same kind."""
        ...

    def clear(self) -> None:
        """Removes all rows."""
        ...


_PARTS = ("index", "row", "slack", "other", "output")

TableStats = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The bytes that a table takes."""

    index_bytes: int
    row_bytes: int  # existing rows and their stamps
    slack_bytes: int  # memory for new rows, and alignment
    other_bytes: int = 0  # parts of pages, changed keys, snapshots, filters, kept outputs

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return self.index_bytes + self.row_bytes + self.slack_bytes + self.other_bytes


def table_stats(table: LocalTable) -> TableStats:
    """Returns name, rows, bytes, load and counters of a table, ready for a log or for JSON.

    - `index_bytes`, `row_bytes`: the index, and existing rows with their stamps.
    - `slack_bytes`: memory for new rows, and alignment.
    - `other_bytes`: parts of pages, changed keys, snapshots and filters. It also holds the table's
      share of the working memory that threads keep for their next calls, about 45 bytes per id of
      the largest call.
    - `output_bytes`: outputs that are no longer in use and are kept for the next lookup.
    - `total_bytes`: the sum of the above.
    - `uncompressed_bytes`: the size of the rows as fp32, without optimizer state.
    - `load_factor`: the share of the index that is filled.
    - `longest_search`: the largest number of buckets that a search visits.

    Counters start when the table is made.
    """
    if not isinstance(table, LocalTable):
        raise DtypeError(f"stats of a {type(table).__name__}; pass a HostTable or a DeviceTable.")
    counted = table.stats()
    parts = (int(counted[f"{part}_bytes"]) for part in _PARTS)
    return {"name": table.config.name, **counted, "total_bytes": sum(parts)}
