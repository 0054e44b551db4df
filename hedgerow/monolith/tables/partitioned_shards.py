"""The shards of partitioned tables: in this process, on every rank, or on servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...core import checks
from ...core.errors import ConfigError, InputError, NotSupportedError
from ...core.shapes import Float32, Int64
from ...ps.server_tables import ServerTables, check_finite, rates_of_keys
from ...ps.shard import Shard
from ...sharding.all_to_all_tables import ShardStore
from ...sharding.delivery import (
    Delivery,
    GradientMerging,
    GradientPush,
    deliver,
    floats_of,
    sizes_of,
    start_fetch,
    totals,
)
from ...sharding.exchange import Exchange
from ...tables.config import TableConfig
from ...tables.multi import parts
from ...tables.optimizers import Rate
from ...tables.store import Applied, Missing, TableKeys


class Shards(Protocol):
    """Tables in several shards. Ids are ordered by shard, then by table."""

    @property
    def count(self) -> int:
        """The number of shards."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The tables of every shard, in byte order."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of ids and rows."""
        ...

    def pull(
        self,
        ids: Int64[Tensor, "n"],
        slot_sizes: Int64[Tensor, "shards * tables"],
        *,
        missing: Missing,
        step: int | None,
    ) -> tuple[Delivery, Float32[Tensor, "floats"]]:
        """Returns the rows in the order of the ids, and the delivery for `push`.

        `slot_sizes` must be in host memory.
        """
        ...

    def push(
        self,
        at: Delivery,
        grads: Float32[Tensor, "floats"],
        occurrences: Int64[Tensor, "n"],
        *,
        rates: Sequence[Rate] | None,
        step: int | None,
        ts: int,
        per_occurrence: bool,
    ) -> Applied:
        """Performs one optimizer step per table and distinct id of a `pull`, or per listed id."""
        ...

    def assign(
        self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, add: bool, ts: int
    ) -> Applied:
        """Sets rows or adds to them. Each shard has its own keys and rows."""
        ...


class LocalShards:
    """Shards of this process, one store each. A single one is a plain local table."""

    def __init__(self, stores: Sequence[ShardStore]) -> None:
        if not stores:
            raise ConfigError("LocalShards without a store; give one per shard.")
        self.stores = tuple(stores)
        for store in self.stores:
            if (store.names, store.dims) != (self.names, self.dims):
                raise ConfigError(
                    f"shards differ: tables {self.names} of {self.dims} columns and {store.names} "
                    f"of {store.dims}; every shard holds all tables."
                )

    @property
    def count(self) -> int:
        """The number of shards."""
        return len(self.stores)

    @property
    def names(self) -> tuple[str, ...]:
        """The tables of every shard."""
        return self.stores[0].names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        return self.stores[0].dims

    @property
    def device(self) -> torch.device:
        """The device of ids and rows."""
        return getattr(self.stores[0], "device", checks.CPU)

    def pull(
        self,
        ids: Int64[Tensor, "n"],
        slot_sizes: Int64[Tensor, "shards * tables"],
        *,
        missing: Missing,
        step: int | None,
    ) -> tuple[Delivery, Float32[Tensor, "floats"]]:
        """Returns the rows in the order of the ids, and the delivery for `push`."""
        sizes = sizes_of(slot_sizes, self.count)
        at = Delivery(sizes, sizes, ids)
        floats = floats_of(sizes, self.dims)
        rows = torch.empty(sum(floats), device=ids.device)
        for shard, out in enumerate(rows.split(floats)):
            self.stores[shard].lookup(at.keys_of(shard), missing=missing, step=step, out=out)
        return at, rows

    def push(
        self,
        at: Delivery,
        grads: Float32[Tensor, "floats"],
        occurrences: Int64[Tensor, "n"],
        *,
        rates: Sequence[Rate] | None,
        step: int | None,
        ts: int,
        per_occurrence: bool,
    ) -> Applied:
        """Performs one optimizer step per table and distinct id, shard after shard."""
        shares = zip(
            self.stores,
            grads.split(floats_of(at.sent, self.dims)),
            occurrences.split(totals(at.sent)),
            strict=True,
        )
        return parts.total(
            [
                store.apply_gradients(
                    at.keys_of(shard),
                    share,
                    rates=rates,
                    step=step,
                    ts=ts,
                    counts=counts,
                    per_occurrence=per_occurrence,
                )
                for shard, (store, share, counts) in enumerate(shares)
            ]
        )

    def assign(
        self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, add: bool, ts: int
    ) -> Applied:
        """Sets rows or adds to them. Each shard has its own keys and rows."""
        if not len(keys) == len(rows) == self.count:
            raise InputError(
                f"keys of {len(keys)} and rows of {len(rows)} shards; there are {self.count}."
            )
        done = []
        for store, its_keys, its_rows in zip(self.stores, keys, rows, strict=True):
            verb = store.assign_add if add else store.assign
            done.append(verb(its_keys, its_rows, ts=ts))
        return parts.total(done)


class RankShards:
    """One shard on every rank of an exchange. All ranks must make the same calls."""

    def __init__(
        self,
        local: ShardStore,
        exchange: Exchange,
        *,
        merge_across_ranks: bool = True,
        updates: Exchange | None = None,
    ) -> None:
        self.local, self.exchange, self.updates = local, exchange, updates or exchange
        self._merging = GradientMerging(merge_across_ranks)

    @property
    def count(self) -> int:
        """The number of shards, which is the number of ranks."""
        return self.exchange.ranks

    @property
    def names(self) -> tuple[str, ...]:
        """The tables of every shard."""
        return self.local.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        return self.local.dims

    @property
    def device(self) -> torch.device:
        """The device of ids and rows."""
        return getattr(self.local, "device", checks.CPU)

    def pull(
        self,
        ids: Int64[Tensor, "n"],
        slot_sizes: Int64[Tensor, "shards * tables"],
        *,
        missing: Missing,
        step: int | None,
    ) -> tuple[Delivery, Float32[Tensor, "floats"]]:
        """Returns the rows of this rank's ids from their owners, and the delivery for `push`."""
        at = deliver(self.exchange, ids, slot_sizes)
        rows = start_fetch(self.exchange, at, self.local, self.dims, missing=missing, step=step)
        return at, rows.wait()

    def push(
        self,
        at: Delivery,
        grads: Float32[Tensor, "floats"],
        occurrences: Int64[Tensor, "n"],
        *,
        rates: Sequence[Rate] | None,
        step: int | None,
        ts: int,
        per_occurrence: bool,
    ) -> Applied:
        """Applies the gradients of all ranks at their owners."""
        going = GradientPush.start(self.updates, at, self.dims, grads, occurrences, self._merging)
        return going.apply(self.local, rates=rates, step=step, ts=ts, per_occurrence=per_occurrence)

    def assign(
        self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, add: bool, ts: int
    ) -> Applied:
        """Not supported over ranks, as in Monolith."""
        raise NotSupportedError(
            "assign is not supported over ranks; every rank assigns to its own `local` tables."
        )


class ServerShards:
    """Shards on servers. A call sends one request to each of them, all at once.

    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> configs = {"t": TableConfig("t", (Segment(1, Zeros(), Sgd(lr=1.0)),))}
    >>> shards = ServerShards([LocalShard(HostTables(configs)) for _ in range(2)], configs)
    >>> shards.count, shards.names
    (2, ('t',))
    """

    def __init__(self, shards: Sequence[Shard], configs: Mapping[str, TableConfig]) -> None:
        self.store = ServerTables(shards, configs)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The servers."""
        return self.store.shards

    @property
    def count(self) -> int:
        """The number of servers."""
        return len(self.store.shards)

    @property
    def names(self) -> tuple[str, ...]:
        """The tables of every server."""
        return self.store.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        return self.store.dims

    @property
    def device(self) -> torch.device:
        """The CPU: servers take tensors in host memory."""
        return checks.CPU

    def pull(
        self,
        ids: Int64[Tensor, "n"],
        slot_sizes: Int64[Tensor, "shards * tables"],
        *,
        missing: Missing,
        step: int | None,
    ) -> tuple[Delivery, Float32[Tensor, "floats"]]:
        """Returns the rows in the order of the ids. Each server's rows are received in place."""
        sizes = sizes_of(slot_sizes, self.count)
        at = Delivery(sizes, sizes, ids)
        floats = floats_of(sizes, self.dims)
        rows = torch.empty(sum(floats), dtype=torch.float32)
        places = rows.split(floats)
        self.store.ask(
            [i for i, n in enumerate(totals(sizes)) if n],
            lambda i, shard: shard.start_lookup(
                at.keys_of(i), missing=missing, step=step, out=places[i]
            ),
        )
        return at, rows

    def push(
        self,
        at: Delivery,
        grads: Float32[Tensor, "floats"],
        occurrences: Int64[Tensor, "n"],
        *,
        rates: Sequence[Rate] | None,
        step: int | None,
        ts: int,
        per_occurrence: bool,
    ) -> Applied:
        """Performs one optimizer step per table and distinct id, on every server that owns some."""
        config = self.store.config
        all_keys = at.merged_keys()
        now = rates_of_keys(config, all_keys, rates, step)
        shares = grads.split(floats_of(at.sent, self.dims))
        counts = occurrences.split(totals(at.sent))
        for i, share in enumerate(shares):  # before the first server changes a row
            check_finite("grads", config, at.keys_of(i), share)
        done = self.store.ask(
            [i for i, n in enumerate(totals(at.sent)) if n],
            lambda i, shard: shard.start_apply_gradients(
                at.keys_of(i),
                shares[i],
                rates=now,
                step=step,
                ts=ts,
                counts=counts[i],
                per_occurrence=per_occurrence,
            ),
            writes=True,
        )
        return parts.total(done)

    def assign(
        self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, add: bool, ts: int
    ) -> Applied:
        """Sets rows or adds to them. Each server has its own keys and rows."""
        if not len(keys) == len(rows) == self.count:
            raise InputError(
                f"keys of {len(keys)} and rows of {len(rows)} shards; there are {self.count}."
            )
        for own, its_rows in zip(keys, rows, strict=True):
            check_finite("rows", self.store.config, own, its_rows)
        done = self.store.ask(
            range(self.count),
            lambda i, shard: (shard.start_assign_add if add else shard.start_assign)(
                keys[i], rows[i], ts=ts
            ),
            writes=True,
        )
        return parts.total(done)
