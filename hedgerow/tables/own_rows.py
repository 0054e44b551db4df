"""What checkpoints and statistics ask of a table that this process holds, wherever it lies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.shapes import Int64
from .config import TableConfig
from .filters import FilterMeta, FilterState
from .leave_order import LeaveOrder
from .store import Applied, Entries
from .touched import Touched, TouchedSettings


class Held(Protocol):
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


class Counting(Protocol):
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


class Consumer(Protocol):
    """One consumer's touched keys."""

    settings: TouchedSettings
    since: str | None
    delivering: threading.Lock

    def take(self) -> Touched:
        """The keys changed since the last take."""
        ...

    def give_back(self, taken: Any) -> None:
        """Puts keys back, for the next take."""
        ...

    def close(self) -> None:
        """Stops collecting."""
        ...


@runtime_checkable
class OwnRows(Protocol):
    """A `HostTable` or a `DeviceTable`."""

    config: TableConfig

    @property
    def device(self) -> torch.device:
        """Where its rows lie."""
        ...

    @property
    def filter(self) -> Any:
        """What counts ids for its admission rule: a `Counting`, or None."""
        ...

    @property
    def slot_key(self) -> int:
        """The secret by which it places ids."""
        ...

    def use_slot_key(self, slot_key: int) -> None:
        """Places ids by this key from now on, while there are no rows."""
        ...

    @property
    def order(self) -> LeaveOrder | None:
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

    def snapshot(self, *, paused: bool = False) -> Held:
        """All rows as they are when this returns."""
        ...

    def consumer(self, name: str) -> Consumer | None:
        """The consumer of touched keys that is open under a name."""
        ...

    def touched(self, consumer: str, *, all_changes: bool = False) -> Consumer:
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
