"""Monolith's `distributed_ps_factory`: six functions that build tables, with its arguments.

`hedgerow.monolith.tables.assemble` builds the tables. `cluster` sets the servers and ranks. Table
classes are exported under Monolith's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core import checks
from ..core.errors import InputError
from ..launch.process_group import get_device
from ..launch.rank_info import rank_info
from ..ops.combiners import Combiner
from ..tables.admission import SlidingFilter
from ..tables.config import TableConfig
from ..tables.multi.host_tables import HostTables
from .layouts import OutConfig
from .tables.assemble import (
    InThisProcess,
    OverRanks,
    OverServers,
    Where,
    assemble,
    assemble_partitioned,
    cluster,
    connector,
    exchanges,
    partitioned_features,
)
from .tables.describe import T, attach_clients, is_remote, monolith_names
from .tables.hash_filters import HashFilter, counts_of, create_hash_filters, filtered
from .tables.merged import MergedMultiTypeTable
from .tables.multi_hash_table import (
    CachedConfig,
    MultiHashTable,
    MultiHashTableFactory,
    convert_to_cached_config,
)
from .tables.multi_type import MultiTypeTable
from .tables.on_servers import DEADLINE_MS, DistributedMultiTypeTable, DistributedTable
from .tables.over_ranks import AllToAllMultiTypeTable, QueueDepths
from .tables.partitioned import PartitionedTable
from .tables.slot_tables import SlotTables

DistributedHashTable = DistributedTable
MultiTypeHashTable = MultiTypeTable
MergedMultiTypeHashTable = MergedMultiTypeTable
DistributedMultiTypeHashTable = DistributedMultiTypeTable
DistributedMultiTypeHashTableMpi = AllToAllMultiTypeTable
PartitionedHashTable = PartitionedTable


Configs = Mapping[str, TableConfig]
Filter = HashFilter | SlidingFilter | None
Queues = Mapping[str, int | None] | None


def create_in_worker_multi_type_hash_table(
    shard_num: int,
    slot_to_config: Configs,
    hash_filter: Filter,
    sync_client: object | None = None,
    queue_configs: Queues = None,
) -> SlotTables:
    """Builds one table per group of slots, with rows distributed over ranks."""
    where = _over_ranks(shard_num, hash_filter, queue_configs)
    configs = filtered(slot_to_config, hash_filter)
    built = assemble(configs, where, native=False, merge=True, names_of=monolith_names)
    return attach_clients(built, [sync_client])


def create_multi_type_hash_table(
    num_ps: int,
    slot_to_config: Configs,
    hash_filters: Sequence[Filter],
    sync_clients: Sequence[object | None] | None = None,
    reduce_network_packets: bool = False,
    max_rpc_deadline_millis: int = DEADLINE_MS,
) -> SlotTables:
    """Builds one table per group of slots, in this process or on servers.

    With `reduce_network_packets` each server gets one request per step for all tables.
    """
    shards = _Shards.of(num_ps, hash_filters, sync_clients, native=False)
    checks.flag("reduce_network_packets", reduce_network_packets)
    where = shards.where(reduce_network_packets, max_rpc_deadline_millis)
    built = assemble(
        shards.shared_configs(slot_to_config),
        where,
        native=False,
        merge=True,
        names_of=monolith_names,
        front=lambda configs, filter: MultiTypeTable(shards.configs(0, configs), filter=filter),
    )
    return attach_clients(built, shards.clients)


def create_native_multi_hash_table(
    num_ps: int,
    slot_to_config: Configs,
    hash_filters: Sequence[Filter],
    sync_clients: Sequence[object | None] | None = None,
    max_rpc_deadline_millis: int = DEADLINE_MS,
) -> SlotTables:
    """Builds all slots as one object, in this process or on every server."""
    shards = _Shards.of(num_ps, hash_filters, sync_clients, native=True)
    where = shards.where(True, max_rpc_deadline_millis)
    if num_ps == 0:
        return MultiHashTable.from_configs(slot_to_config, shards.filters[0], shards.clients[0])
    built = assemble(shards.shared_configs(slot_to_config), where)
    return shards.attached(built)


def create_in_worker_native_multi_hash_table(
    shard_num: int,
    slot_to_config: Configs,
    hash_filter: Filter,
    sync_client: object | None = None,
    queue_configs: Queues = None,
) -> SlotTables:
    """Builds all slots as one object on every rank, which holds the rows it owns."""
    where = _over_ranks(shard_num, hash_filter, queue_configs)
    built = assemble(filtered(slot_to_config, hash_filter), where)
    return attach_clients(built, [sync_client])


def create_partitioned_hash_table(
    num_ps: int,
    use_native_multi_hash_table: bool,
    max_rpc_deadline_millis: int = DEADLINE_MS,
    hash_filters: Sequence[Filter] | None = None,
    sync_clients: Sequence[object | None] | None = None,
    enable_gpu_emb: bool = False,
    queue_configs: Queues = None,
    *,
    feature_name_to_config: Configs | None = None,
    layout_configs: Mapping[str, OutConfig] | None = None,
    feature_to_combiner: Mapping[str, Combiner] | None = None,
    feature_to_unmerged_slice_dims: Mapping[str, Sequence[int]] | None = None,
    unique: bool = False,
    transfer_float16: bool = False,
    parity: bool = False,
) -> PartitionedTable:
    """Builds partitioned tables in this process, on servers, or with `enable_gpu_emb` over ranks.

    With `enable_gpu_emb` rows, layouts and gradients are in each rank's GPU memory, or in host
    memory if there is no GPU.

    The keyword-only arguments are values that Monolith reads from its parser. An id that two
    features of a merged table share takes one optimizer step with the summed gradient. With
    `parity` it takes two steps, as in Monolith.
    """
    if feature_name_to_config is None:
        raise InputError("feature_name_to_config is not given; pass the config of each feature.")
    native = checks.flag("use_native_multi_hash_table", use_native_multi_hash_table)
    shards = _Shards.of(num_ps, hash_filters, sync_clients, native=native)
    half = checks.flag("transfer_float16", transfer_float16)
    where: Where
    device, configs = None, shards.shared_configs(feature_name_to_config)
    if checks.flag("enable_gpu_emb", enable_gpu_emb):
        found = get_device(rank_info())
        device = found if found.type == "cuda" else None
        where = _over_ranks(num_ps, shards.filters, queue_configs, found)
        configs = shards.configs(where.exchange.rank, feature_name_to_config)
    else:
        where = shards.where(True, max_rpc_deadline_millis)
    features, tables = partitioned_features(
        configs,
        layout_configs,
        feature_to_combiner,
        feature_to_unmerged_slice_dims,
        merge=not native or (half and not enable_gpu_emb),
    )
    built = assemble_partitioned(
        tables,
        features,
        where,
        native=native,
        unique=unique,
        parity=parity,
        transfer_float16=half,
        queue_configs=queue_configs,
        device=device,
        make=shards.make,
    )
    return attach_clients(built, shards.clients) if device is not None else shards.attached(built)


# ---- shared by the factories


@dataclass(frozen=True, slots=True, eq=False)
class _Shards:
    """The filter and sync client of each shard, and the factory of the shards in this process."""

    num_ps: int
    filters: tuple[Filter, ...]
    clients: tuple[object | None, ...]
    factory: MultiHashTableFactory | None

    @staticmethod
    def of(
        num_ps: int,
        hash_filters: Sequence[Filter] | None,
        sync_clients: Sequence[object | None] | None,
        *,
        native: bool,
    ) -> _Shards:
        """Builds the value from one filter and one client per shard.

        No clients or an empty list means None.

        Without servers there may be any number of clients; only the first is used.
        """
        count = max(checks.count("num_ps", num_ps), 1)
        filters = [None] * count if hash_filters is None else list(hash_filters)
        if len(filters) != count:
            raise InputError(
                f"{num_ps} servers but {len(filters)} hash filters; give {count}, one per shard."
            )
        clients = list(sync_clients or [None] * count)
        if num_ps > 0 and len(clients) != num_ps:
            raise InputError(
                f"{num_ps} servers but {len(clients)} sync clients; give one per server."
            )
        clients = clients[:count]
        factory = MultiHashTableFactory(filters, clients) if native else None
        return _Shards(num_ps, tuple(filters), tuple(clients), factory)

    def shared_configs(self, configs: Configs) -> Configs:
        """Returns the configs that all shards share.

        If every shard has a filter, their own rules are dropped.
        """
        if all(isinstance(one, HashFilter) for one in self.filters):
            return filtered(configs, HashFilter())
        return configs

    def configs(self, shard: int, configs: Configs) -> Configs:
        """Returns the tables of a shard with the rule of its filter."""
        return filtered(configs, self.filters[shard])

    def make(self, shard: int, configs: Configs) -> HostTables:
        """Builds the store that holds the rows of a shard of this process."""
        if self.factory is not None:
            return self.factory(shard, configs).store
        counts = counts_of(self.filters[shard])
        return MultiTypeTable(self.configs(shard, configs), filter=counts).store

    def where(self, one_request: bool, deadline_ms: int) -> InThisProcess | OverServers:
        """Returns this process if there are no servers, else the servers of the cluster."""
        checks.count("max_rpc_deadline_millis", deadline_ms, least=1)
        if self.num_ps == 0:
            return InThisProcess(counts_of(self.filters[0]))
        return OverServers(
            connector(self.num_ps, self.make, self.configs),
            one_request=one_request,
            max_rpc_deadline_millis=deadline_ms,
        )

    def attached(self, built: T) -> T:
        """Attaches each shard's client to its tables, and returns `built`.

        The factory has already attached clients to tables of this process. Clients of tables on
        servers are attached here.
        """
        if self.factory is None or is_remote(built):
            return attach_clients(built, self.clients)
        built.sync_clients = self.clients
        return built


def _over_ranks(
    shard_num: int,
    filters: Sequence[Filter] | Filter,
    queue_configs: Queues,
    device: torch.device = checks.CPU,
) -> OverRanks:
    """Returns the placement over ranks. `filters` is one filter for all ranks, or one per rank."""
    QueueDepths.of(queue_configs)  # checked before a process group is created
    reads, updates = exchanges(device)
    if checks.count("shard_num", shard_num) != reads.ranks:
        raise InputError(
            f"shard_num is {shard_num}, and the world has {reads.ranks} ranks; every rank holds "
            f"one shard, so they must be equal."
        )
    own = filters[reads.rank] if isinstance(filters, Sequence) else filters
    counts = counts_of(own)
    return OverRanks(shard_num, reads, updates, counts, queue_configs)


@dataclass(frozen=True, slots=True)
class FactoryChoice:
    """A factory, and its settings besides tables and shards."""

    factory: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return self.factory.__name__ + (f"({given})" if given else "")


def trainer_choice(
    *, full_sync: bool, fused_layout: bool, native: bool = True, gpu_workers: int = 0
) -> FactoryChoice:
    """Returns the factory of a training run: over servers, or with `full_sync` over ranks.

    The caller passes `use_native_multi_hash_table` to the factory of a partitioned table
    (`fused_layout`). With `full_sync` and tables on the GPUs of `gpu_workers` workers, there is one
    shard, filter and client per worker.

    >>> str(trainer_choice(full_sync=False, fused_layout=False, native=False))
    'create_multi_type_hash_table(reduce_network_packets=True)'
    """
    for name, value in (
        ("full_sync", full_sync),
        ("fused_layout", fused_layout),
        ("native", native),
    ):
        checks.flag(name, value)
    checks.count("gpu_workers", gpu_workers)
    if fused_layout and full_sync and gpu_workers:
        over = {"num_ps": gpu_workers, "enable_gpu_emb": True}
        return FactoryChoice(create_partitioned_hash_table, over)
    if fused_layout:
        return FactoryChoice(create_partitioned_hash_table)
    if full_sync:
        return FactoryChoice(
            create_in_worker_native_multi_hash_table
            if native
            else create_in_worker_multi_type_hash_table
        )
    if native:
        return FactoryChoice(create_native_multi_hash_table)
    return FactoryChoice(create_multi_type_hash_table, {"reduce_network_packets": True})


__all__ = [
    "CachedConfig",
    "DistributedHashTable",
    "DistributedMultiTypeHashTable",
    "DistributedMultiTypeHashTableMpi",
    "MergedMultiTypeHashTable",
    "MultiHashTable",
    "MultiHashTableFactory",
    "MultiTypeHashTable",
    "PartitionedHashTable",
    "cluster",
    "convert_to_cached_config",
    "create_hash_filters",
    "create_in_worker_multi_type_hash_table",
    "create_in_worker_native_multi_hash_table",
    "create_multi_type_hash_table",
    "create_native_multi_hash_table",
    "create_partitioned_hash_table",
]
