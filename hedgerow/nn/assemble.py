"""From what tables are to be, and where, to the object that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ..core import checks
from ..core.errors import NotSupportedError
from ..ops.layout import FeatureConfigs
from ..ps.distributed import DEADLINE_MS, DistributedMultiTypeTable, DistributedTable
from ..ps.half import HalfShard
from ..ps.shard import LocalShard, Shard
from ..ps.some_tables import TablesOfShard
from ..sharding.all_to_all_front import AllToAllMultiTypeTable
from ..sharding.all_to_all_tables import ShardStore
from ..sharding.exchange import Exchange
from ..sharding.shards import LocalShards, RankShards, Shards
from ..tables.config import TableConfig
from ..tables.filters import SlidingFilter
from ..tables.multi.host_tables import HostTables
from ..tables.multi.merged import MergedMultiTypeTable, NamesOf
from ..tables.multi.multi_config import MultiConfig
from ..tables.multi.multi_type import MultiTypeTable
from ..tables.multi.native_multi import NativeMultiTable
from ..tables.multi.slot_stores import SlotStores
from ..tables.multi.slot_tables import SlotTables
from ..tables.store import RowStore
from .partitioned_table import PartitionedTable
from .server_shards import ServerShards

Configs = Mapping[str, TableConfig]
Front = type[NativeMultiTable] | type[MultiTypeTable]
MakeShard = Callable[[int, Configs], HostTables]
"""From the number of a shard and its tables to what holds their rows."""


@dataclass(frozen=True, slots=True)
class Here:
    """All rows in this process."""

    filter: SlidingFilter | None = None


@dataclass(frozen=True, slots=True)
class OverRanks:
    """One shard on every rank, as many as `shards`. `updates` may be an exchange of their own."""

    shards: int
    exchange: Exchange
    updates: Exchange | None = None
    filter: SlidingFilter | None = None
    queue_configs: Mapping[str, int | None] | None = None


@dataclass(frozen=True, slots=True)
class OverServers:
    """One shard on every server. `connect` gives them for tables, a deadline in seconds and half
    precision on the way or not; without a deadline they have that of training. With `one_request`
    off every table asks for itself."""

    connect: Callable[[Configs, float | None, bool], Sequence[Shard]]
    one_request: bool = True
    transfer_float16: bool = False
    max_rpc_deadline_millis: int = DEADLINE_MS
    queue_configs: Mapping[str, int | None] | None = None


Where = Here | OverRanks | OverServers


def assemble(
    configs: Configs,
    where: Where,
    *,
    native: bool = True,
    merge: bool = False,
    names_of: NamesOf | None = None,
    front: Callable[[Configs, SlidingFilter | None], NativeMultiTable | MultiTypeTable]
    | None = None,
) -> SlotTables:
    """Tables by slot name. `native`: one object for all of them, else a table for each.

    With `merge` slots of equal config share a table; `names_of` names it. `front` makes what holds
    the rows of this process, if it is to be a class of the caller's.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> configs = {"1": config, "2": config}
    >>> assemble(configs, Here(), native=False, merge=True).below.names
    ('merged_...',)
    >>> servers = OverServers(local_shards(2))
    >>> type(assemble(configs, servers)).__name__
    'DistributedMultiTypeTable'
    """
    checks.flag("native", native)
    holds: Front = NativeMultiTable if native else MultiTypeTable
    make = front or (lambda own, filter: holds(own, filter=filter))

    def below(own: Configs) -> SlotTables:
        if isinstance(where, Here):
            return make(own, where.filter)
        if isinstance(where, OverRanks):
            return AllToAllMultiTypeTable(
                where.shards,
                make(own, where.filter),
                where.exchange,
                where.queue_configs,
                updates=where.updates,
            )
        return _over_servers(own, where, holds)

    if not merge:
        return below(configs)
    return MergedMultiTypeTable(configs, below=below, names_of=names_of)


def _over_servers(configs: Configs, where: OverServers, holds: Front) -> SlotTables:
    shards = where.connect(configs, None, where.transfer_float16)
    if where.one_request:
        return DistributedMultiTypeTable(
            shards,
            configs,
            holds=holds,
            transfer_float16=where.transfer_float16,
            max_rpc_deadline_millis=where.max_rpc_deadline_millis,
            serving=lambda limit_s: where.connect(configs, limit_s, where.transfer_float16),
        )
    limit_s = where.max_rpc_deadline_millis / 1000

    def serving() -> dict[str, RowStore]:
        return _alone(configs, where.connect(configs, limit_s, where.transfer_float16))

    return SlotStores(configs, _alone(configs, shards), serving)


def _alone(configs: Configs, shards: Sequence[Shard]) -> dict[str, RowStore]:
    """Every table for itself, on the same servers."""
    config = MultiConfig.of(configs)
    stores: dict[str, RowStore] = {}
    for k, (name, own) in enumerate(zip(config.names, config.configs, strict=True)):
        views = [TablesOfShard(shard, [k], config.segment_splits) for shard in shards]
        stores[name] = DistributedTable(views, own)
    return stores


def assemble_partitioned(
    configs: Configs,
    features: FeatureConfigs,
    where: Where,
    *,
    native: bool = True,
    unique: bool = False,
    parity: bool = False,
    transfer_float16: bool = False,
    queue_configs: Mapping[str, int | None] | None = None,
    device: torch.device | None = None,
    make: MakeShard | None = None,
) -> PartitionedTable:
    """The partitioned flow over tables of `configs`, which are those that `features` name.

    With `transfer_float16` rows and gradients travel to servers and back as half. With a `device`
    rows of this process are in its memory, and so are layouts and their gradients. `make` builds
    what holds the rows of this process in host memory.
    """
    holds: Front = NativeMultiTable if native else MultiTypeTable
    shards: Shards
    serving: Callable[[], Shards] | None = None

    def store(shard: int, filter: SlidingFilter | None) -> ShardStore:
        if make is not None and device is None:
            return make(shard, configs)
        return _store(configs, holds, filter, device)

    if isinstance(where, Here):
        shards = LocalShards([store(0, where.filter)])
    elif isinstance(where, OverRanks):
        local = store(where.exchange.rank, where.filter)
        shards = RankShards(local, where.exchange, merge_across_ranks=False, updates=where.updates)
    else:
        shards = ServerShards(where.connect(configs, None, transfer_float16), configs)
        serving = partial(_serving_shards, configs, where, transfer_float16)
    return PartitionedTable(
        features,
        shards,
        holds=holds,
        unique=unique,
        parity=parity,
        transfer_float16=transfer_float16,
        queue_configs=queue_configs,
        serving=serving,
    )


def _store(
    configs: Configs, holds: Front, filter: SlidingFilter | None, device: torch.device | None
) -> ShardStore:
    """What holds the rows of this process."""
    if device is None:
        return holds(configs, filter=filter).store
    from ..tables.multi.device_tables import DeviceTables

    if filter is not None:
        raise NotSupportedError(
            "tables on a device with a hash filter in host memory; give the tables' configs an "
            "admission rule instead, which counts on the device."
        )
    return DeviceTables(configs, device=device)


def _serving_shards(configs: Configs, where: OverServers, half: bool) -> ServerShards:
    limit_s = where.max_rpc_deadline_millis / 1000
    return ServerShards(where.connect(configs, limit_s, half), configs)


def local_shards(
    count: int, make: MakeShard | None = None
) -> Callable[[Configs, float | None, bool], list[Shard]]:
    """Servers that are tables of this process, to try things out: the same ones for every call.

    `make` builds what holds the rows of shard i.
    """
    checks.count("count", count, least=1)
    make_shard = make or (lambda _, configs: MultiTypeTable(configs).store)
    made: dict[tuple[str, ...], list[LocalShard]] = {}

    def connect(configs: Configs, deadline_s: float | None, half: bool) -> list[Shard]:
        names = MultiConfig.of(configs).names
        if names not in made:
            made[names] = [LocalShard(make_shard(i, configs)) for i in range(count)]
        return [HalfShard(shard) if half else shard for shard in made[names]]

    return connect
