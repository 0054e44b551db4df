"""Builds tables from their configs, their features, and the placement of the job's processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from ...core import checks
from ...core.checks import unknown
from ...core.errors import ConfigError, InputError, NotSupportedError
from ...launch.process_group import start_process_group
from ...launch.rank_info import rank_info
from ...nn.distribute import own_group
from ...ops.combiners import Combiner, FirstN, ReduceMean, ReduceSum
from ...ps.remote_shard import connect
from ...ps.shard import Fp16Shard, LocalShard, Shard, ShardView
from ...sharding.all_to_all_tables import ShardStore
from ...sharding.exchange import Exchange
from ...tables.admission import SlidingFilter
from ...tables.config import TableConfig
from ...tables.multi.host_tables import HostTables
from ...tables.multi.several_tables import MultiConfig
from ...tables.store import RowStore
from ..layouts import FeatureConfigs, LayoutFeature, OutConfig
from .describe import monolith_names
from .merged import MergedMultiTypeTable, NamesOf, merge_slots
from .multi_type import MultiTypeTable, NativeMultiTable
from .on_servers import DEADLINE_MS, DistributedMultiTypeTable, DistributedTable
from .over_ranks import AllToAllMultiTypeTable
from .partitioned import PLACEHOLDER_TABLE, PartitionedTable
from .partitioned_shards import LocalShards, RankShards, ServerShards, Shards
from .slot_tables import SlotStores, SlotTables

Configs = Mapping[str, TableConfig]
Front = type[NativeMultiTable] | type[MultiTypeTable]
MakeShard = Callable[[int, Configs], HostTables]
"""Builds the store of a shard from its number and its tables."""


@dataclass(frozen=True, slots=True)
class InThisProcess:
    """All rows are in this process."""

    filter: SlidingFilter | None = None


@dataclass(frozen=True, slots=True)
class OverRanks:
    """Rows are distributed over ranks, with one of `shards` shards on each.

    `updates` may be a separate exchange for updates.
    """

    shards: int
    exchange: Exchange
    updates: Exchange | None = None
    filter: SlidingFilter | None = None
    queue_configs: Mapping[str, int | None] | None = None


@dataclass(frozen=True, slots=True)
class OverServers:
    """Rows are on servers, one shard each.

    `connect` returns the shards for tables, a deadline in seconds and whether to transfer half
    precision. Without a deadline they have that of training. Without `one_request` every table
    sends its own requests.
    """

    connect: Callable[[Configs, float | None, bool], Sequence[Shard]]
    one_request: bool = True
    transfer_float16: bool = False
    max_rpc_deadline_millis: int = DEADLINE_MS
    queue_configs: Mapping[str, int | None] | None = None


Where = InThisProcess | OverRanks | OverServers


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
    """Builds tables by slot name.

    With `native` all of them are one object, else there is one per slot.

    With `merge` slots of equal config share a table, which `names_of` names. `front` builds the
    tables of this process, if the caller needs its own class.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> configs = {"1": config, "2": config}
    >>> assemble(configs, InThisProcess(), native=False, merge=True).below.names
    ('merged_...',)
    >>> servers = OverServers(local_shards(2))
    >>> type(assemble(configs, servers)).__name__
    'DistributedMultiTypeTable'
    """
    checks.flag("native", native)
    holds: Front = NativeMultiTable if native else MultiTypeTable
    make = front or (lambda own, filter: holds(own, filter=filter))

    def below(own: Configs) -> SlotTables:
        if isinstance(where, InThisProcess):
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
    """Returns a separate store for every table, on the same servers."""
    config = MultiConfig.of(configs)
    stores: dict[str, RowStore] = {}
    for k, (name, own) in enumerate(zip(config.names, config.configs, strict=True)):
        views = [ShardView(shard, [k], config.segment_splits) for shard in shards]
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
    """Builds partitioned tables from `configs`, which must be the tables that `features` name.

    With `transfer_float16` rows and gradients are transferred to and from servers as half. With a
    `device` rows of this process, layouts and gradients are in its memory. `make` builds the store
    of this process in host memory.
    """
    holds: Front = NativeMultiTable if native else MultiTypeTable
    shards: Shards
    serving: Callable[[], Shards] | None = None

    def store(shard: int, filter: SlidingFilter | None) -> ShardStore:
        if make is not None and device is None:
            return make(shard, configs)
        return _store(configs, holds, filter, device)

    if isinstance(where, InThisProcess):
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
    """Builds the store of the rows of this process."""
    if device is None:
        return holds(configs, filter=filter).store
    from ...tables.multi.device_tables import DeviceTables

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
    """Returns a function that connects to shards in this process, for trying things out.

    Every call returns the same shards. `make` builds the store of shard i.
    """
    checks.count("count", count, least=1)
    make_shard = make or (lambda _, configs: MultiTypeTable(configs).store)
    made: dict[tuple[str, ...], list[LocalShard]] = {}

    def connect(configs: Configs, deadline_s: float | None, half: bool) -> list[Shard]:
        names = MultiConfig.of(configs).names
        if names not in made:
            made[names] = [LocalShard(make_shard(i, configs)) for i in range(count)]
        return [Fp16Shard(shard) if half else shard for shard in made[names]]

    return connect


@dataclass(frozen=True, slots=True)
class _Cluster:
    ps: tuple[str, ...] = ()
    keys: Path | None = None
    exchange: Exchange | None = None
    updates: Exchange | None = None


_NOWHERE = _Cluster()
_current: ContextVar[_Cluster] = ContextVar("cluster", default=_NOWHERE)


@contextmanager
def cluster(
    servers: Mapping[str, Sequence[str]] | None = None,
    *,
    keys: Path | None = None,
    exchange: Exchange | None = None,
    updates: Exchange | None = None,
) -> Iterator[None]:
    """Sets the servers, `{"ps": [address, ...]}`, or ranks for factories that are called inside.

    Without servers, factories keep shards of servers in this process. Without an exchange, the
    ranks are those of the launcher.

    >>> with cluster({"ps": ["10.0.0.1:7070", "10.0.0.2:7070"]}):
    ...     server_count()
    2
    """
    addresses = tuple((servers or {}).get("ps", ()))
    token = _current.set(_Cluster(addresses, keys, exchange, updates))
    try:
        yield
    finally:
        _current.reset(token)


def server_count() -> int:
    """Returns the number of servers of the cluster, 0 if none are set."""
    return len(_current.get().ps)


def connector(
    num_ps: int, make: MakeShard, configs_of: Callable[[int, Configs], Configs]
) -> Callable[[Configs, float | None, bool], Sequence[Shard]]:
    """Returns a function that connects to `num_ps` shards: the cluster's servers, or this process.

    Server i gets `configs_of(i, configs)`. Without servers `make(i, configs)` builds shard i.
    """
    now = _current.get()
    if not now.ps:
        return local_shards(num_ps, make)
    if len(now.ps) != num_ps:
        raise InputError(f"num_ps is {num_ps}, and the cluster has {len(now.ps)} servers.")

    def over(configs: Configs, deadline_s: float | None, half: bool) -> Sequence[Shard]:
        wire = torch.float16 if half else torch.float32
        own = [configs_of(i, configs) for i in range(num_ps)]
        return connect(now.ps, own, wire=wire, deadline_s=deadline_s, keys=now.keys)

    return over


def exchanges(device: torch.device = checks.CPU) -> tuple[Exchange, Exchange]:
    """Returns the exchanges of reads and of updates: the cluster's, or new groups of all ranks.

    The exchanged data is in host memory, or on `device`.
    """
    now = _current.get()
    if now.exchange is not None:
        return now.exchange, now.updates or now.exchange
    if (dist.get_world_size() if dist.is_initialized() else rank_info().world_size) == 1:
        alone = Exchange()
        return alone, alone
    start_process_group()
    return Exchange(own_group(device)), Exchange(own_group(device))


_POOLINGS: dict[type[Combiner], str] = {ReduceSum: "SUM", ReduceMean: "MEAN", FirstN: "FIRSTN"}


def partitioned_features(
    feature_name_to_config: Mapping[str, TableConfig],
    layout_configs: Mapping[str, OutConfig] | None,
    feature_to_combiner: Mapping[str, Combiner] | None,
    feature_to_unmerged_slice_dims: Mapping[str, Sequence[int]] | None,
    *,
    merge: bool,
) -> tuple[FeatureConfigs, dict[str, TableConfig]]:
    """Returns the features of the layouts, and the configs of the tables that hold their rows.

    Features without a combiner are summed. Slices are the config's segments, unless the dims before
    segments were merged are given. Without `merge` every feature has its own table.
    """
    config = MultiConfig.of(feature_name_to_config)
    combiners, slices = feature_to_combiner or {}, feature_to_unmerged_slice_dims or {}
    for what, given in (("feature_to_combiner", combiners), ("slice dims", slices)):
        for name in given:
            if name not in config.positions:
                unknown(f"feature in {what}", name, config.names)
    tables = dict(zip(config.names, config.configs, strict=True))
    table_of = dict.fromkeys(config.names, PLACEHOLDER_TABLE)
    if merge:
        groups, tables = merge_slots(config, monolith_names)
        table_of = {slot: monolith_names(group)[0] for group in groups for slot in group.slots}
    features = {}
    for name, own in zip(config.names, config.configs, strict=True):
        dims = tuple(slices.get(name, [segment.dim for segment in own.segments]))
        if sum(dims) != own.dim:
            raise InputError(
                f"slice dims {list(dims)} of feature {name!r} add up to {sum(dims)}; its rows have "
                f"{own.dim} columns."
            )
        pooling, length = pooling_of(name, combiners.get(name))
        features[name] = LayoutFeature(table_of[name], pooling, dims, length)
    return FeatureConfigs(features, dict(layout_configs or {})), tables


def pooling_of(feature: str, combiner: Combiner | None) -> tuple[str, int]:
    """Returns the pooling of a feature, and how many vectors are kept per row.

    >>> pooling_of("f", FirstN(3)), pooling_of("f", None)
    (('FIRSTN', 3), ('SUM', 0))
    """
    if combiner is None:
        return "SUM", 0
    if type(combiner) not in _POOLINGS:
        raise ConfigError(
            f"feature {feature!r} has combiner {combiner!r}; layouts take ReduceSum, ReduceMean "
            f"and FirstN."
        )
    return _POOLINGS[type(combiner)], combiner.max_seq_length
