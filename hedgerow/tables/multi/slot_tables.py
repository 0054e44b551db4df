"""What every front of tables by slot name can do, wherever their rows lie."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from ...core.shapes import Float32, Int8, Int64
from ..store import Applied, Missing
from .slot_front import SlotIds, SlotRates, SlotRows


class SlotTables(Protocol):
    """Tables addressed by slot name; slots that a call does not list are left alone."""

    sync_clients: tuple[object, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The slots, in byte order."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each slot, in the order of `names`."""
        ...

    def lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Rows of each listed slot's ids. Nothing is inserted."""
        ...

    def assign(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Sets rows and keeps optimizer state."""
        ...

    def assign_add(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Adds to rows; an absent one starts from its first value."""
        ...

    def apply_gradients(
        self,
        batch: SlotRows,
        *,
        rates: SlotRates | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: SlotIds | None = None,
        per_occurrence: bool = False,
    ) -> Applied:
        """One optimizer step per slot and distinct id."""
        ...

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Makes rows as new; raises where a front does not offer it."""
        ...

    def size(self) -> int:
        """Rows of all tables."""
        ...

    def max_ts(self) -> int:
        """The largest `ts` that a write gave to any table."""
        ...


@runtime_checkable
class ServesLookups(Protocol):
    """Tables whose lookups have a deadline of their own while serving."""

    def serving_lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Rows within the deadline, or an error that names who was late."""
        ...
