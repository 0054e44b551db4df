"""A store of its own for every slot: a call goes to those of its slots, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

import torch
from torch import Tensor

from ...core import checks
from ...core.errors import InputError, NotSupportedError
from ...core.shapes import Float32, Int64
from .. import arguments
from ..config import TableConfig
from ..store import Applied, Missing, RowStore, TableKeys
from . import parts
from .multi_config import MultiConfig
from .slot_front import SlotIds, SlotRates, SlotRows, slot_items, slot_pairs


class SlotStores:
    """A front over one `RowStore` of a single table for each slot.

    Everything is checked before the first store changes; what a store itself refuses leaves those
    before it changed. `serving` gives the same rows for `serving_lookup`.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.host import HostTable
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("user", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> front = SlotStores({"user": config}, {"user": HostTable(config)})
    >>> front.assign({"user": (torch.tensor([7]), torch.ones(1, 1))})
    Applied(inserted=1, refused=0, dropped=0)
    """

    sync_clients: tuple[object, ...] = ()  # who is told of changed rows, one a shard

    def __init__(
        self,
        configs: Mapping[str, TableConfig],
        stores: Mapping[str, RowStore],
        serving: Callable[[], Mapping[str, RowStore]] | None = None,
    ) -> None:
        self._connect = serving
        self._serving: SlotStores | None = None
        self.config = MultiConfig.of(configs)
        if set(stores) != set(self.config.names):
            raise InputError(
                f"stores of slots {sorted(stores)} for configs of {list(self.config.names)}."
            )
        self.stores = {name: stores[name] for name in self.config.names}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stores!r})"

    @property
    def names(self) -> tuple[str, ...]:
        """The slots, in byte order."""
        return self.config.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each slot, in the order of `names`."""
        return self.config.dims

    def lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Rows of each listed slot's ids. Nothing is inserted."""
        given = slot_items("ids", ids)
        for slot, own in given:
            self.config.at(slot)
            checks.tensor(f"ids of {slot!r}", own, torch.int64, (None,))
        return {
            slot: self.stores[slot].lookup(_keys(own), missing=missing, step=step).rows_of()
            for slot, own in given
        }

    def serving_lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """`lookup` in the stores that `serving` gives, which have a deadline of their own."""
        if self._serving is None:
            configs = dict(zip(self.config.names, self.config.configs, strict=True))
            stores = self.stores if self._connect is None else self._connect()
            self._serving = SlotStores(configs, stores)
        return self._serving.lookup(ids, missing=missing, step=step)

    def assign(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Sets rows and keeps optimizer state."""
        checked = self._batch("rows", batch)
        return parts.total(
            [self.stores[s].assign(_keys(ids), rows, ts=ts) for s, ids, rows in checked]
        )

    def assign_add(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Adds to rows; an absent one starts from its first value."""
        checked = self._batch("rows", batch)
        return parts.total(
            [self.stores[s].assign_add(_keys(ids), rows, ts=ts) for s, ids, rows in checked]
        )

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
        checked = self._batch("grads", batch)
        own_rates = dict(slot_items("rates", {} if rates is None else rates))
        own_counts = dict(slot_items("counts", {} if counts is None else counts))
        for slot in own_rates:
            self.config.at(slot)
        for slot in own_counts:
            if slot not in batch:
                raise InputError(f"counts lists slot {slot!r}, for which there are no ids.")
        return parts.total(
            [
                self.stores[slot].apply_gradients(
                    _keys(ids),
                    rows,
                    rates=own_rates.get(slot),
                    step=step,
                    ts=ts,
                    counts=own_counts.get(slot),
                    per_occurrence=per_occurrence,
                )
                for slot, ids, rows in checked
            ]
        )

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> NoReturn:
        """Not offered, as in the original."""
        raise NotSupportedError(
            f"reinitialize of slot {slot!r} on a table for each slot; use native tables."
        )

    def size(self) -> int:
        """Rows of all tables."""
        return sum(store.size() for store in self.stores.values())

    def max_ts(self) -> int:
        """The largest `ts` that a write gave to any table."""
        return max(store.max_ts() for store in self.stores.values())

    def _batch(self, name: str, batch: SlotRows) -> list[tuple[str, Tensor, Tensor]]:
        checked = []
        pairs = dict(slot_pairs(name, batch))
        for slot in sorted(pairs):
            ids, rows = pairs[slot]
            dim = self.dims[self.config.at(slot)]
            rows = arguments.rows_of_batch(f"{name} of {slot!r}", rows, len(ids), dim)
            if len(ids):
                checked.append((slot, ids, rows))
        return checked


def _keys(ids: Tensor) -> TableKeys:
    return TableKeys.of_one(ids)
