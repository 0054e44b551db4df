"""Tables addressed by slot name: dicts of ids and rows in, dicts of rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ...core import checks
from ...core.clock import Clock
from ...core.errors import DtypeError, InputError
from ...core.shapes import Float32, Int64
from .. import arguments
from ..config import TableConfig
from ..filters import SlidingFilter
from ..host import HostTable
from ..schedules import Rate, check_rates
from ..store import Applied, Missing
from . import parts
from .host_tables import HostTables
from .parts import Part

V = TypeVar("V")
SlotIds = Mapping[str, Int64[Tensor, "n"]]
SlotRows = Mapping[str, tuple[Int64[Tensor, "n"], Float32[Tensor, "n dim"]]]
SlotRates = Mapping[str, Sequence[Rate]]


class SlotFront:
    """What the fronts over `HostTables` share. Slots that a call does not list are left alone.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(2, Zeros(), Sgd(lr=0.5)),))
    >>> front = SlotFront({"user": config, "item": config})
    >>> ids = torch.tensor([3, 4])
    >>> front.assign({"user": (ids, torch.ones(2, 2))})
    Applied(inserted=2, refused=0, dropped=0)
    >>> {slot: rows.tolist() for slot, rows in front.lookup({"user": ids[:1]}).items()}
    {'user': [[1.0, 1.0]]}
    """

    sync_clients: tuple[object, ...] = ()  # who is told of changed rows, one a shard

    def __init__(
        self,
        configs: Mapping[str, TableConfig],
        *,
        clock: Clock | None = None,
        filter: SlidingFilter | None = None,
    ) -> None:
        self.store = HostTables(configs, clock=clock, filter=filter)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r})"

    @property
    def names(self) -> tuple[str, ...]:
        """The slots, in byte order."""
        return self.store.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each slot, in the order of `names`."""
        return self.store.dims

    def table(self, slot: str) -> HostTable:
        """The table of a slot."""
        return self.store.table(self.store.config.at(slot))

    def lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Rows of each listed slot's ids. Nothing is inserted."""
        for slot, own in slot_items("ids", ids):
            self.table(slot).core.checked_keys(own)
        return {
            slot: self.table(slot).lookup(own, missing=missing, step=step).rows_of()
            for slot, own in ids.items()
        }

    def assign(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Sets rows and keeps optimizer state."""
        return parts.assign(self._parts("rows", batch), ts=ts)

    def assign_add(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Adds to rows; an absent one starts from its first value."""
        return parts.assign_add(self._parts("rows", batch), ts=ts)

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
        """One optimizer step per slot and distinct id. Slots without `rates` use their own."""
        return parts.apply_gradients(
            self._parts("grads", batch, rates, counts),
            step=step,
            ts=ts,
            per_occurrence=per_occurrence,
        )

    def size(self) -> int:
        """Rows of all tables."""
        return self.store.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave to any table."""
        return self.store.max_ts()

    def _parts(
        self,
        name: str,
        batch: SlotRows,
        rates: SlotRates | None = None,
        counts: SlotIds | None = None,
    ) -> list[Part]:
        pairs = dict(slot_pairs(name, batch))
        for slot in pairs:
            self.store.config.at(slot)
        own_rates = dict(slot_items("rates", {} if rates is None else rates))
        own_counts = dict(slot_items("counts", {} if counts is None else counts))
        for slot, given in own_rates.items():
            check_rates(given, len(self.table(slot).config.segments))
        for slot in own_counts:
            if slot not in pairs:
                raise InputError(f"counts lists slot {slot!r}, for which there are no ids.")
        found = []
        for slot in sorted(pairs):
            table, (ids, rows) = self.table(slot), pairs[slot]
            ids = table.core.checked_keys(ids).ids
            rows = arguments.rows_of_batch(f"{name} of {slot!r}", rows, len(ids), table.layout.dim)
            arguments.occurrences(own_counts.get(slot), len(ids))
            if len(ids):
                found.append(Part(table, ids, rows, own_rates.get(slot), own_counts.get(slot)))
        return found


def slot_items(name: str, batch: Mapping[str, V]) -> list[tuple[str, V]]:
    """What a dict by slot holds, or an error that says it is none.

    >>> slot_items("ids", {"user": 1})
    [('user', 1)]
    """
    if not isinstance(batch, Mapping):
        raise DtypeError(f"{name} is a {type(batch).__name__}; pass a dict by slot name.")
    return list(batch.items())


def slot_pairs(name: str, batch: SlotRows) -> list[tuple[str, tuple[Tensor, Tensor]]]:
    """Ids and rows of each slot, or an error that says what is none."""
    pairs = []
    for slot, value in slot_items("the batch", batch):
        if not isinstance(value, tuple) or len(value) != 2:
            raise DtypeError(f"slot {slot!r} has a {type(value).__name__}; pass (ids, {name}).")
        ids, rows = value
        checks.tensor(f"ids of {slot!r}", ids, torch.int64, (None,))
        pairs.append((slot, (ids, rows)))
    return pairs
