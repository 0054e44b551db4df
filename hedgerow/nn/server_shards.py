"""Partitioned tables whose shards are servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..core.shapes import Float32, Int64
from ..ps.server_tables import ServerTables
from ..ps.shard import Shard
from ..ps.worker_checks import check_finite, rates_now
from ..sharding.delivery import Delivery, floats_of, sizes_of, totals
from ..tables.config import TableConfig
from ..tables.multi import parts
from ..tables.schedules import Rate
from ..tables.store import Applied, Missing, TableKeys


class ServerShards:
    """The shards of partitioned tables on servers; one request to each a call, all at once.

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
        """How many servers there are."""
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
        """Servers are spoken to from host memory."""
        return checks.CPU

    def pull(
        self,
        ids: Int64[Tensor, "n"],
        slot_sizes: Int64[Tensor, "shards * tables"],
        *,
        missing: Missing,
        step: int | None,
    ) -> tuple[Delivery, Float32[Tensor, "floats"]]:
        """Rows in the order of the ids, each server's straight to their place."""
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
        """One optimizer step per table and distinct id, on every server that has some."""
        config = self.store.config
        all_keys = at.merged_keys()
        now = rates_now(config, all_keys, rates, step)
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
        """Sets rows, or adds to them; keys and rows of each server are its own."""
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
