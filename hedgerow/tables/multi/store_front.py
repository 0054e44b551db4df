"""Any store of several tables, addressed by slot name: dicts become one call on all tables."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor

from ...core import checks
from ...core.errors import InputError, NotSupportedError
from ...core.shapes import Float32, Int8, Int64
from .. import arguments
from ..schedules import Rate, check_rates
from ..store import Applied, Missing, RowStore, TableKeys
from .multi_config import MultiConfig
from .slot_front import SlotIds, SlotRates, SlotRows, slot_items, slot_pairs


class StoreFront:
    """The slots of a `RowStore` whose tables are those of `config`. One call of the store a call.

    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(2, Zeros(), Sgd(lr=0.5)),))
    >>> store = HostTables({"user": config, "item": config})
    >>> front = StoreFront(store, store.config)
    >>> ids = torch.tensor([3, 4])
    >>> front.apply_gradients({"user": (ids, torch.ones(2, 2))})
    Applied(inserted=2, refused=0, dropped=0)
    >>> {slot: rows.tolist() for slot, rows in front.lookup({"user": ids[:1]}).items()}
    {'user': [[-0.5, -0.5]]}
    """

    sync_clients: tuple[object, ...] = ()  # who is told of changed rows, one a shard

    def __init__(self, store: RowStore, config: MultiConfig) -> None:
        self.store, self.config = store, config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r})"

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
        given = dict(slot_items("ids", ids))
        found = self.store.lookup(self.keys(given), missing=missing, step=step)
        return {slot: found.rows_of(self.config.at(slot)) for slot in given}

    def assign(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Sets rows and keeps optimizer state."""
        return self.store.assign(*self._batch("rows", batch), ts=ts)

    def assign_add(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Adds to rows; an absent one starts from its first value."""
        return self.store.assign_add(*self._batch("rows", batch), ts=ts)

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
        keys, flat = self._batch("grads", batch)
        return self.store.apply_gradients(
            keys,
            flat,
            rates=None if rates is None else self._rates(rates),
            step=step,
            ts=ts,
            counts=None if counts is None else self._counts(batch, counts),
            per_occurrence=per_occurrence,
        )

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Not offered, unless a front says so."""
        raise NotSupportedError(
            f"reinitialize of slot {slot!r} on a {type(self).__name__}; use native tables."
        )

    def size(self) -> int:
        """Rows of all tables."""
        return self.store.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave to any table."""
        return self.store.max_ts()

    # ---- helpers

    def keys(self, ids: SlotIds) -> TableKeys:
        """Ids by slot as keys of all tables; a slot that is missing has none."""
        for slot, own in slot_items("ids", ids):
            self.config.at(slot)
            checks.tensor(f"ids of {slot!r}", own, torch.int64, (None,))
        none = torch.empty(0, dtype=torch.int64)
        parts = [ids.get(name, none) for name in self.names]
        return TableKeys(torch.cat(parts), (0, *accumulate(len(part) for part in parts)))

    def _batch(self, name: str, batch: SlotRows) -> tuple[TableKeys, Float32[Tensor, "floats"]]:
        pairs = dict(slot_pairs(name, batch))
        rows = {}
        for slot, (ids, own) in pairs.items():
            dim = self.dims[self.config.at(slot)]
            rows[slot] = arguments.rows_of_batch(f"{name} of {slot!r}", own, len(ids), dim)
        keys = self.keys({slot: ids for slot, (ids, _) in pairs.items()})
        flat = [rows[slot].view(-1) for slot in self.names if slot in rows]
        return keys, torch.cat([torch.empty(0, dtype=torch.float32), *flat])

    def _rates(self, rates: SlotRates) -> list[Rate]:
        given = dict(slot_items("rates", rates))
        for slot in given:
            self.config.at(slot)
        found: list[Rate] = []
        for name, table in zip(self.names, self.config.configs, strict=True):
            own = [s.optimizer.rate() if s.optimizer else 0.0 for s in table.segments]
            found += check_rates(given.get(name, own), len(table.segments))
        return found

    def _counts(self, batch: SlotRows, counts: SlotIds) -> Int64[Tensor, "n"]:
        return slot_counts(self.names, batch, counts)


def slot_counts(
    names: tuple[str, ...], batch: Mapping[str, tuple[Tensor, Tensor]], counts: SlotIds
) -> Int64[Tensor, "n"]:
    """Occurrences of all ids of a batch; 1 for those of slots that `counts` does not list."""
    given = dict(slot_items("counts", counts))
    for slot, own in given.items():
        if slot not in batch:
            raise InputError(f"counts lists slot {slot!r}, for which there are no ids.")
        arguments.occurrences(own, len(batch[slot][0]))
    whole = [
        given[name] if name in given else torch.ones(len(batch[name][0]), dtype=torch.int64)
        for name in names
        if name in batch
    ]
    return torch.cat([torch.empty(0, dtype=torch.int64), *whole])
