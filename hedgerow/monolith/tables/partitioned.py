"""Partitioned tables: from raw ids to the tensors of a model, with one lookup for all tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor

from ...core import checks
from ...core.checks import unknown
from ...core.errors import ConfigError, InputError, NotSupportedError
from ...core.ids import Ragged
from ...core.shapes import Float32, Int64
from ...sharding.delivery import Delivery
from ...sharding.pipeline import Item
from ...tables.optimizers import Rate
from ...tables.store import Applied, Missing, TableKeys
from ..layouts import (
    FeatureConfigs,
    ShardedFids,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    nest_layout,
    shard_fids,
)
from ..layouts.config import by_name
from .multi_type import MultiTypeTable, NativeMultiTable
from .over_ranks import BatchSteps, QueueDepths, Queues
from .partitioned_shards import LocalShards, RankShards, Shards

PLACEHOLDER_TABLE = "native_multi_hash_table_fake_table"
"""The name of the table in Monolith if every feature has its own table."""

Layouts = dict[str, Tensor | list[Tensor]]
Given = Mapping[str, Tensor | Sequence[Tensor | None] | None]


class LayoutIndex(TypedDict):
    """The index tensors of a layout."""

    fid_offset: Int64[Tensor, "ids"]
    feature_offset: Tensor
    nfl_offset: Int64[Tensor, "features+1"]


@dataclass(frozen=True, slots=True, eq=False)
class LookedUpBatch:
    """The rows of a batch, and what a layout and its backward need. Passed between stages."""

    sharded: ShardedFids
    at: Delivery
    rows: Float32[Tensor, "floats"]  # ordered like the ids: by shard, then table

    def index(self) -> LayoutIndex:
        """Returns the index tensors on the device of the rows, without blocking."""
        sharded, device = self.sharded, self.rows.device
        return {
            "fid_offset": sharded.fid_offset.to(device, non_blocking=True),
            "feature_offset": sharded.feature_offset.to(device, non_blocking=True),
            "nfl_offset": sharded.nfl_offset.to(device, non_blocking=True),
        }

    def lists(self) -> list[Float32[Tensor, "values"]]:
        """Returns the rows of each table and shard, by table, then shard."""
        return by_list(self.sharded, self.rows)


class PartitionedTables:
    """Sharding, lookup and layout as separate stages, and gradients of layouts back to the rows.

    `shards` must hold the tables that `config` names, or one table per feature; then the configured
    table is a placeholder for all of them. With `unique` equal ids of a feature are looked up once.
    An id that occurs in several features of one table takes one optimizer step with the summed
    gradient. With `parity` it takes one step per feature, as in Monolith (and without `unique` one
    per occurrence).

    >>> from hedgerow.monolith.layouts import LayoutFeature, OutConfig, Slice
    >>> from hedgerow.monolith.tables.partitioned_shards import LocalShards
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = FeatureConfigs(
    ...     {"f": LayoutFeature("t", "SUM", (2,))}, {"out": OutConfig("NONE", (Slice("f", 0, 2),))}
    ... )
    >>> table = TableConfig("t", (Segment(2, Zeros(), Sgd(lr=1.0)),))
    >>> stores = [HostTables({"t": table}) for shard in range(2)]
    >>> tables = PartitionedTables(config, LocalShards(stores))
    >>> batch = {"f": (False, Ragged.from_lists([[7, 8], [7]]))}
    >>> pulled = tables.pull(tables.shard(batch, 2))
    >>> tables.apply_gradients(pulled, {"out": [torch.ones(2, 2)]})
    Applied(inserted=2, refused=0, dropped=0)
    >>> tables.lookup(batch, 2)
    {'out': [tensor([[-3., -3.],
            [-2., -2.]])]}
    """

    def __init__(
        self,
        config: FeatureConfigs,
        shards: Shards,
        *,
        unique: bool = True,
        parity: bool = False,
    ) -> None:
        self.config, self.shards, self._unique = config, shards, unique
        self._parity = checks.flag("parity", parity)
        names, features = list(shards.names), config.features
        self.by_feature = names != config.tables
        if self.by_feature and (names != config.names or len(config.tables) != 1):
            raise ConfigError(
                f"the shards hold tables {names}; the features want {config.tables}, or one table "
                f"each under one placeholder."
            )
        dims = dict(zip(shards.names, shards.dims, strict=True))
        for name, feature in features.items():
            table = name if self.by_feature else feature.table
            if feature.width != dims[table]:
                raise ConfigError(
                    f"feature {name!r} has {feature.width} columns, its table {table!r} "
                    f"{dims[table]}; they must be equal."
                )

    # ---- stages

    def shard(self, features: Mapping[str, tuple[bool, Ragged]], batch_size: int) -> ShardedFids:
        """Returns the ids of a batch by owner. Needs no table, so a data pipeline can call it."""
        return shard_fids(features, batch_size, self.shards.count, self.config, self._unique)

    def pull(
        self, sharded: ShardedFids, *, missing: Missing = "zeros", step: int | None = None
    ) -> LookedUpBatch:
        """Returns the rows of sharded ids, from all shards."""
        sizes = self._slot_sizes(sharded)
        ids = sharded.flat_fids.to(self.shards.device, non_blocking=True)
        at, rows = self.shards.pull(ids, sizes, missing=missing, step=step)
        return LookedUpBatch(sharded, at, rows)

    def layout(self, pulled: LookedUpBatch) -> Layouts:
        """Returns the tensors of all layouts by name; a list for a layout of type NONE."""
        found = fused_embedding_to_layout(
            pulled.rows,
            self.config,
            **pulled.index(),
            batch_size=pulled.sharded.batch_size,
            num_shards=self.shards.count,
            emb_lengths=pulled.sharded.emb_lengths,
        )
        return nest_layout(found, self.config)

    def lookup(
        self,
        features: Mapping[str, tuple[bool, Ragged]],
        batch_size: int,
        *,
        missing: Missing = "zeros",
        step: int | None = None,
    ) -> Layouts:
        """Performs all stages."""
        return self.layout(self.pull(self.shard(features, batch_size), missing=missing, step=step))

    # ---- back

    def gradients(
        self, pulled: LookedUpBatch, layouts: Given, *, scale: float | None = None
    ) -> Float32[Tensor, "floats"]:
        """Returns the gradients of the rows from those of layouts.

        Missing gradients count as zeros.
        """
        sharded = pulled.sharded
        (grads,) = fused_embedding_to_layout_grad(
            pulled.rows,
            self.config,
            **pulled.index(),
            batch_size=sharded.batch_size,
            num_shards=self.shards.count,
            emb_lengths=sharded.emb_lengths,
            layout_tensors_grad=self._all_gradients(layouts, pulled),
            layout_tensors_grad_scale=scale,
        )
        return grads

    def apply_gradients(
        self,
        pulled: LookedUpBatch,
        layouts: Given,
        *,
        scale: float | None = None,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
    ) -> Applied:
        """Performs one optimizer step per table and distinct id, from the gradients of layouts.

        With `parity` there is one step per listed id, with features in name order.
        """
        grads = self.gradients(pulled, layouts, scale=scale)
        counts = self._occurrences(pulled.sharded).to(grads.device, non_blocking=True)
        return self.shards.push(
            pulled.at,
            grads,
            counts,
            rates=rates,
            step=step,
            ts=ts,
            per_occurrence=self._parity,
        )

    def assign(self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, ts: int = 0) -> Applied:
        """Sets rows that are already partitioned: keys and flat rows of each shard."""
        return self.shards.assign(keys, rows, add=False, ts=ts)

    def assign_add(
        self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, ts: int = 0
    ) -> Applied:
        """Adds to rows that are already partitioned."""
        return self.shards.assign(keys, rows, add=True, ts=ts)

    # ---- helpers

    def _slot_sizes(self, sharded: ShardedFids) -> Int64[Tensor, "shards * tables"]:
        if not self.by_feature:
            return sharded.table_row_lengths.to(torch.int64)
        return sharded.flat_row_splits.view(self.shards.count, -1).diff(dim=1).reshape(-1)

    def _occurrences(self, sharded: ShardedFids) -> Int64[Tensor, "ids"]:
        """Returns how often each listed id occurs in the batch."""
        if not self._unique:
            return torch.ones_like(sharded.flat_fids)
        sizes = self._slot_sizes(sharded)
        widths = torch.tensor(self.shards.dims * self.shards.count).repeat_interleave(sizes)
        ends = widths.cumsum(0)
        words, shards = sharded.fid_offset, self.shards.count
        lengths = sharded.emb_lengths.to(torch.int64)
        starts = lengths.cumsum(0) - lengths  # by shard, then table
        table, shard = (words >> 32) // shards, (words >> 32) % shards
        firsts = starts[shard * len(self.config.tables) + table] + (words & 0xFFFFFFFF)
        number = torch.searchsorted(ends, firsts, right=True)
        return torch.bincount(number, minlength=len(ends))

    def _all_gradients(self, layouts: Given, pulled: LookedUpBatch) -> list[Tensor]:
        batch_size, device = pulled.sharded.batch_size, pulled.rows.device
        for name in layouts:
            if name not in self.config.outs:
                unknown("layout", name, self.config.outs)
        found: list[Tensor] = []
        for name in by_name(self.config.outs):
            sizes = self.config.outs[name].sizes(self.config.features)
            given = layouts.get(name)
            mine = [given] if given is None or isinstance(given, Tensor) else list(given)
            if given is None:
                mine = [None] * len(sizes)
            if len(mine) != len(sizes):
                raise InputError(
                    f"{len(mine)} gradients of layout {name!r}; it has {len(sizes)} tensors."
                )
            for grad, size in zip(mine, sizes, strict=True):
                none = grad is None
                found.append(torch.zeros(batch_size, *size, device=device) if none else grad)
        return found


def by_list(
    sharded: ShardedFids, flat: Float32[Tensor, "floats"]
) -> list[Float32[Tensor, "values"]]:
    """Returns a flat tensor by shard, then table, as a list by table, then shard; no copies."""
    lengths = sharded.emb_lengths.tolist()
    shards = len(sharded.shard_row_lengths)
    tables = len(lengths) // shards
    parts = flat.split(lengths)
    return [parts[shard * tables + table] for table in range(tables) for shard in range(shards)]


@dataclass(frozen=True, slots=True, eq=False)
class FeatureIds:
    """The ids of a batch by feature, and its number of samples."""

    features: Mapping[str, tuple[bool, Ragged]]
    batch_size: int


@dataclass(frozen=True, slots=True, eq=False)
class LayoutResult:
    """The tensors of a batch, and what the backward needs."""

    layouts: Layouts
    pulled: LookedUpBatch


class PartitionedTable(PartitionedTables):
    """`PartitionedTables` with queues and the kind of its shards.

    Over ranks rows cannot be assigned, and `post_push` is not supported. `serving` returns the same
    shards with the serving deadline, for `serving_lookup`.

    >>> from hedgerow.monolith.layouts import LayoutFeature, OutConfig, Slice
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> features = FeatureConfigs(
    ...     {"f": LayoutFeature("t", "SUM", (2,))}, {"out": OutConfig("NONE", (Slice("f", 0, 2),))}
    ... )
    >>> local = MultiTypeTable({"t": TableConfig("t", (Segment(2, Zeros(), Sgd(lr=1.0)),))})
    >>> table = PartitionedTable(features, LocalShards([local.store]), holds=MultiTypeTable)
    >>> table.path, table.shards.count
    ('packed', 1)
    """

    sync_clients: tuple[object, ...] = ()

    def __init__(
        self,
        config: FeatureConfigs,
        shards: Shards,
        *,
        holds: type[NativeMultiTable] | type[MultiTypeTable],
        unique: bool = False,
        parity: bool = False,
        transfer_float16: bool = False,
        queue_configs: Mapping[str, int | None] | None = None,
        serving: Callable[[], Shards] | None = None,
    ) -> None:
        super().__init__(config, shards, unique=unique, parity=parity)
        self._connect, self._serving = serving, None if serving else shards
        self.holds, self.transfer_float16 = holds, transfer_float16
        depths = QueueDepths.of(queue_configs)
        if self.is_over_ranks and depths.post_push:
            raise InputError(
                "queue_configs has 'post_push' for tables over ranks, where an asynchronous push "
                "would exchange beside training; leave it out."
            )
        steps: BatchSteps[FeatureIds, LayoutResult] = BatchSteps(
            self._start, self._arrive, self._send, self._update
        )
        self.queues = Queues(depths, steps)

    @property
    def is_over_ranks(self) -> bool:
        """Whether every rank holds one shard."""
        return isinstance(self.shards, RankShards)

    @property
    def is_local(self) -> bool:
        """Whether all rows are in this process."""
        return isinstance(self.shards, LocalShards)

    @property
    def path(self) -> str:
        """How rows are requested: `alltoall`, `raw` or `packed`."""
        if self.is_over_ranks:
            return "alltoall"
        return "raw" if self.holds is NativeMultiTable and not self.transfer_float16 else "packed"

    @property
    def is_merged(self) -> bool:
        """Whether features of equal config share a table."""
        return not self.by_feature

    def serving_lookup(
        self,
        features: Mapping[str, tuple[bool, Ragged]],
        batch_size: int,
        *,
        missing: Missing = "zeros",
        step: int | None = None,
    ) -> Layouts:
        """Performs `lookup` within the serving deadline. An error names the late server."""
        sharded = self.shard(features, batch_size)
        if self._serving is None and self._connect is not None:
            self._serving = self._connect()  # on first use, over separate connections
        shards, sizes = self._serving or self.shards, self._slot_sizes(sharded)
        ids = sharded.flat_fids.to(shards.device, non_blocking=True)
        at, rows = shards.pull(ids, sizes, missing=missing, step=step)
        return self.layout(LookedUpBatch(sharded, at, rows))

    def assign(self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, ts: int = 0) -> Applied:
        """Sets rows that are already partitioned. Not supported over ranks."""
        self._refuse_over_ranks("assign")
        return super().assign(keys, rows, ts=ts)

    def assign_add(
        self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, ts: int = 0
    ) -> Applied:
        """Adds to rows that are already partitioned. Not supported over ranks."""
        self._refuse_over_ranks("assign_add")
        return super().assign_add(keys, rows, ts=ts)

    def put_gradients(
        self, at: LayoutResult, layouts: Given, *, step: int = 0, ts: int = 0
    ) -> None:
        """Adds the gradients of layouts to the queues."""
        self.queues.put(Item((at.pulled, layouts), step, ts))

    def _refuse_over_ranks(self, verb: str) -> None:
        if self.is_over_ranks:
            raise NotSupportedError(f"{verb} of partitioned tables is not supported over ranks.")
        return

    # ---- the steps of a batch, with queues between them

    def _start(self, item: Item[FeatureIds]) -> LookedUpBatch:
        sharded = self.shard(item.value.features, item.value.batch_size)
        return self.pull(sharded, step=item.step)

    def _arrive(self, item: Item[LookedUpBatch]) -> LayoutResult:
        return LayoutResult(self.layout(item.value), item.value)

    def _send(self, item: Item[tuple[LookedUpBatch, Given]]) -> Any:
        return item.value

    def _update(self, item: Item[tuple[LookedUpBatch, Given]]) -> Applied:
        pulled, layouts = item.value
        return self.apply_gradients(pulled, layouts, step=item.step, ts=item.ts)
