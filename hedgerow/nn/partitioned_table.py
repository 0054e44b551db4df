"""Partitioned tables as a trainer uses them: what holds the rows, and queues around a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.errors import InputError, NotSupportedError
from ..core.ids import Ragged
from ..ops.layout import FeatureConfigs
from ..sharding.partitioned import Given, Layouts, PartitionedTables, Pulled
from ..sharding.pipeline import Item
from ..sharding.queues import QueueDepths, Queues, Steps
from ..sharding.shards import LocalShards, RankShards, Shards
from ..tables.multi.multi_type import MultiTypeTable
from ..tables.multi.native_multi import NativeMultiTable
from ..tables.store import Applied, Missing, TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """The ids of a batch by feature, and how many samples it has."""

    features: Mapping[str, tuple[bool, Ragged]]
    batch_size: int


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """The tensors of a batch, and what the way back needs."""

    layouts: Layouts
    pulled: Pulled


class PartitionedTable(PartitionedTables):
    """`PartitionedTables` that know what a shard holds and how deep their queues are.

    Over ranks rows cannot be assigned, and gradients cannot leave beside training. `serving` gives
    the same shards with the deadline of serving, for `serving_lookup`.

    >>> from hedgerow.ops.layout import Feature, OutConfig, Slice
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> features = FeatureConfigs(
    ...     {"f": Feature("t", "SUM", (2,))}, {"out": OutConfig("NONE", (Slice("f", 0, 2),))}
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
        steps: Steps[Examples, LaidOut] = Steps(self._start, self._arrive, self._send, self._update)
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
        """How rows are asked for: `alltoall`, `raw` or `packed`."""
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
        """`lookup` within the deadline of serving: an error names the server that was late."""
        sharded = self.shard(features, batch_size)
        if self._serving is None and self._connect is not None:
            self._serving = self._connect()  # the first time, over connections of their own
        shards, sizes = self._serving or self.shards, self._slot_sizes(sharded)
        ids = sharded.flat_fids.to(shards.device, non_blocking=True)
        at, rows = shards.pull(ids, sizes, missing=missing, step=step)
        return self.layout(Pulled(sharded, at, rows))

    def assign(self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, ts: int = 0) -> Applied:
        """Sets rows that are partitioned already; not over ranks."""
        self._refuse_over_ranks("assign")
        return super().assign(keys, rows, ts=ts)

    def assign_add(
        self, keys: Sequence[TableKeys], rows: Sequence[Tensor], *, ts: int = 0
    ) -> Applied:
        """Adds to rows that are partitioned already; not over ranks."""
        self._refuse_over_ranks("assign_add")
        return super().assign_add(keys, rows, ts=ts)

    def put_gradients(self, at: LaidOut, layouts: Given, *, step: int = 0, ts: int = 0) -> None:
        """Gradients of layouts; the queues bring them to the rows."""
        self.queues.put(Item((at.pulled, layouts), step, ts))

    def _refuse_over_ranks(self, verb: str) -> None:
        if self.is_over_ranks:
            raise NotSupportedError(f"{verb} of partitioned tables over ranks, as in Monolith.")
        return

    # ---- the steps of a batch, between which queues stand

    def _start(self, item: Item[Examples]) -> Pulled:
        sharded = self.shard(item.value.features, item.value.batch_size)
        return self.pull(sharded, step=item.step)

    def _arrive(self, item: Item[Pulled]) -> LaidOut:
        return LaidOut(self.layout(item.value), item.value)

    def _send(self, item: Item[tuple[Pulled, Given]]) -> Any:
        return item.value

    def _update(self, item: Item[tuple[Pulled, Given]]) -> Applied:
        pulled, layouts = item.value
        return self.apply_gradients(pulled, layouts, step=item.step, ts=item.ts)
