"""Tables addressed by slot name: dicts of ids and rows in, dicts of rows out, over any store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NoReturn, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from ...core import checks
from ...core.clock import Clock
from ...core.errors import DtypeError, InputError, NotSupportedError
from ...core.shapes import Float32, Int8, Int64
from ...tables import arguments
from ...tables.admission import SlidingFilter
from ...tables.config import TableConfig
from ...tables.host import HostTable
from ...tables.multi import parts
from ...tables.multi.host_tables import HostTables
from ...tables.multi.parts import TableCall
from ...tables.multi.several_tables import MultiConfig
from ...tables.optimizers import Rate, check_rates
from ...tables.store import Applied, Missing, RowStore, TableKeys

V = TypeVar("V")
SlotIds = Mapping[str, Int64[Tensor, "n"]]
SlotRows = Mapping[str, tuple[Int64[Tensor, "n"], Float32[Tensor, "n dim"]]]
SlotRates = Mapping[str, Sequence[Rate]]


class SlotFront:
    """The base of fronts over `HostTables`. Slots that a call does not list are unchanged.

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

    sync_clients: tuple[object, ...] = ()  # one client per shard, which gets changed rows

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
        """Returns the table of a slot."""
        return self.store.table(self.store.config.at(slot))

    def lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Returns the rows of each listed slot's ids. Inserts nothing."""
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
        """Adds to rows. An absent row starts from its first value."""
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
        """Performs one optimizer step per slot and distinct id.

        Slots without `rates` use their own.
        """
        return parts.apply_gradients(
            self._parts("grads", batch, rates, counts),
            step=step,
            ts=ts,
            per_occurrence=per_occurrence,
        )

    def size(self) -> int:
        """Returns the number of rows of all tables."""
        return self.store.size()

    def max_ts(self) -> int:
        """Returns the largest `ts` that a write gave to any table."""
        return self.store.max_ts()

    def _parts(
        self,
        name: str,
        batch: SlotRows,
        rates: SlotRates | None = None,
        counts: SlotIds | None = None,
    ) -> list[TableCall]:
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
                found.append(TableCall(table, ids, rows, own_rates.get(slot), own_counts.get(slot)))
        return found


def slot_items(name: str, batch: Mapping[str, V]) -> list[tuple[str, V]]:
    """Returns the items of a dict by slot. Raises `DtypeError` if it is not a mapping.

    >>> slot_items("ids", {"user": 1})
    [('user', 1)]
    """
    if not isinstance(batch, Mapping):
        raise DtypeError(f"{name} is a {type(batch).__name__}; pass a dict by slot name.")
    return list(batch.items())


def slot_pairs(name: str, batch: SlotRows) -> list[tuple[str, tuple[Tensor, Tensor]]]:
    """Returns ids and rows of each slot. Raises `DtypeError` for anything else than a pair."""
    pairs = []
    for slot, value in slot_items("the batch", batch):
        if not isinstance(value, tuple) or len(value) != 2:
            raise DtypeError(f"slot {slot!r} has a {type(value).__name__}; pass (ids, {name}).")
        ids, rows = value
        checks.tensor(f"ids of {slot!r}", ids, torch.int64, (None,))
        pairs.append((slot, (ids, rows)))
    return pairs


class SlotTables(Protocol):
    """Tables addressed by slot name. Slots that a call does not list are unchanged."""

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
        """Returns the rows of each listed slot's ids. Inserts nothing."""
        ...

    def assign(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Sets rows and keeps optimizer state."""
        ...

    def assign_add(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Adds to rows. An absent row starts from its first value."""
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
        """Performs one optimizer step per slot and distinct id."""
        ...

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Resets rows to first values. Raises if the front does not support it."""
        ...

    def size(self) -> int:
        """Returns the number of rows of all tables."""
        ...

    def max_ts(self) -> int:
        """Returns the largest `ts` that a write gave to any table."""
        ...


@runtime_checkable
class ServesLookups(Protocol):
    """Tables whose lookups have a separate deadline while serving."""

    def serving_lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Returns rows within the deadline. An error names the late server."""
        ...


class StoreFront:
    """The slots of a `RowStore` whose tables are those of `config`.

    Each call makes one call of the store.

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

    sync_clients: tuple[object, ...] = ()  # one client per shard, which gets changed rows

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
        """Returns the rows of each listed slot's ids. Inserts nothing."""
        given = dict(slot_items("ids", ids))
        found = self.store.lookup(self.keys(given), missing=missing, step=step)
        return {slot: found.rows_of(self.config.at(slot)) for slot in given}

    def assign(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Sets rows and keeps optimizer state."""
        return self.store.assign(*self._batch("rows", batch), ts=ts)

    def assign_add(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Adds to rows. An absent row starts from its first value."""
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
        """Performs one optimizer step per slot and distinct id.

        Slots without `rates` use their own.
        """
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
        """Not supported, unless a subclass implements it."""
        raise NotSupportedError(
            f"reinitialize of slot {slot!r} on a {type(self).__name__}; use native tables."
        )

    def size(self) -> int:
        """Returns the number of rows of all tables."""
        return self.store.size()

    def max_ts(self) -> int:
        """Returns the largest `ts` that a write gave to any table."""
        return self.store.max_ts()

    # ---- helpers

    def keys(self, ids: SlotIds) -> TableKeys:
        """Returns ids by slot as keys of all tables. A missing slot has none."""
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
    """Returns the occurrences of all ids of a batch, 1 for slots that `counts` does not list."""
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


class SlotStores:
    """A front over one single-table `RowStore` per slot.

    Arguments are checked before the first store changes. If a store itself refuses, the stores
    before it have already changed. `serving` returns the stores for `serving_lookup`.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.host import HostTable
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("user", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> front = SlotStores({"user": config}, {"user": HostTable(config)})
    >>> front.assign({"user": (torch.tensor([7]), torch.ones(1, 1))})
    Applied(inserted=1, refused=0, dropped=0)
    """

    sync_clients: tuple[object, ...] = ()  # one client per shard, which gets changed rows

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
        """Returns the rows of each listed slot's ids. Inserts nothing."""
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
        """Performs `lookup` in the stores that `serving` returns, with their own deadline."""
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
        """Adds to rows. An absent row starts from its first value."""
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
        """Performs one optimizer step per slot and distinct id.

        Slots without `rates` use their own.
        """
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
        """Not supported, as in Monolith."""
        raise NotSupportedError(
            f"reinitialize of slot {slot!r} on a table for each slot; use native tables."
        )

    def size(self) -> int:
        """Returns the number of rows of all tables."""
        return sum(store.size() for store in self.stores.values())

    def max_ts(self) -> int:
        """Returns the largest `ts` that a write gave to any table."""
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
