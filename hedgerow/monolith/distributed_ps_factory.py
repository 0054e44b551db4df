"""The original's `distributed_ps_factory`: six ways to build tables, by its names and arguments.

What is built is told in `hedgerow.nn.assemble`, where servers and ranks are in `cluster`. Tables
have the original's names, and ours beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..core import checks
from ..core.errors import InputError
from ..launch.device import get_device
from ..launch.rank_info import rank_info
from ..nn.assemble import Here, OverRanks, OverServers, Where, assemble, assemble_partitioned
from ..nn.partitioned_table import PartitionedTable
from ..ops.combiners import Combiner
from ..ops.layout import OutConfig
from ..ps.distributed import DEADLINE_MS, DistributedMultiTypeTable, DistributedTable
from ..sharding.all_to_all_front import AllToAllMultiTypeTable
from ..sharding.queues import QueueDepths
from ..tables.config import TableConfig
from ..tables.filters import SlidingFilter
from ..tables.multi.host_tables import HostTables
from ..tables.multi.merged import MergedMultiTypeTable
from ..tables.multi.multi_type import MultiTypeTable
from ..tables.multi.slot_tables import SlotTables
from .cluster import cluster, connector, exchanges
from .describe import is_remote, original_names
from .hash_filters import HashFilter, counts_of, create_hash_filters, filtered
from .multi_hash_table import (
    CachedConfig,
    MultiHashTable,
    MultiHashTableFactory,
    convert_to_cached_config,
)
from .partitioned_features import partitioned_features
from .sync_attach import T, attach_clients

DistributedHashTable = DistributedTable
MultiTypeHashTable = MultiTypeTable
MergedMultiTypeHashTable = MergedMultiTypeTable
DistributedMultiTypeHashTable = DistributedMultiTypeTable
DistributedMultiTypeHashTableMpi = AllToAllMultiTypeTable
PartitionedHashTable = PartitionedTable

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
    """A table for each group of slots, its rows over ranks."""
    where = _over_ranks(shard_num, hash_filter, queue_configs)
    configs = filtered(slot_to_config, hash_filter)
    built = assemble(configs, where, native=False, merge=True, names_of=original_names)
    return attach_clients(built, [sync_client])


def create_multi_type_hash_table(
    num_ps: int,
    slot_to_config: Configs,
    hash_filters: Sequence[Filter],
    sync_clients: Sequence[object | None] | None = None,
    reduce_network_packets: bool = False,
    max_rpc_deadline_millis: int = DEADLINE_MS,
) -> SlotTables:
    """A table for each group of slots, here or on servers; with `reduce_network_packets` a server
    gets one request a step for all of them."""
    shards = _Shards.of(num_ps, hash_filters, sync_clients, native=False)
    checks.flag("reduce_network_packets", reduce_network_packets)
    where = shards.where(reduce_network_packets, max_rpc_deadline_millis)
    built = assemble(
        shards.shared_configs(slot_to_config),
        where,
        native=False,
        merge=True,
        names_of=original_names,
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
    """All slots in one object, here or on every server."""
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
    """All slots in one object on every rank, with the rows it owns."""
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
    """The partitioned flow, here, on servers, or with `enable_gpu_emb` over ranks.

    With `enable_gpu_emb` rows, layouts and gradients are in the memory of each rank's GPU; on a
    machine without one they are in host memory.

    The keyword arguments are what Monolith reads from its parser. An id that two features of one
    merged table share takes one optimizer step with the summed gradient; with `parity` it takes
    two, as in Monolith.
    """
    if feature_name_to_config is None:
        raise InputError("feature_name_to_config is not given; partitioned tables are of features.")
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


# ---- what the factories share


@dataclass(frozen=True, slots=True, eq=False)
class _Shards:
    """The filter and the sync client of each shard, and what holds the rows of those here."""

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
        """One filter and one client for each shard; no clients, or an empty list, means None.

        Without servers there may be any number of clients, of which the first counts.
        """
        count = max(checks.count("num_ps", num_ps), 1)
        filters = [None] * count if hash_filters is None else list(hash_filters)
        if len(filters) != count:
            raise InputError(
                f"{num_ps} servers but {len(filters)} hash filters; give {count}, one a shard."
            )
        clients = list(sync_clients or [None] * count)
        if num_ps > 0 and len(clients) != num_ps:
            raise InputError(
                f"{num_ps} servers but {len(clients)} sync clients; give one a server."
            )
        clients = clients[:count]
        factory = MultiHashTableFactory(filters, clients) if native else None
        return _Shards(num_ps, tuple(filters), tuple(clients), factory)

    def shared_configs(self, configs: Configs) -> Configs:
        """What all shards agree on: where every shard has a filter, no rule of the tables' own."""
        if all(isinstance(one, HashFilter) for one in self.filters):
            return filtered(configs, HashFilter())
        return configs

    def configs(self, shard: int, configs: Configs) -> Configs:
        """The tables of a shard, under the rule of its filter."""
        return filtered(configs, self.filters[shard])

    def make(self, shard: int, configs: Configs) -> HostTables:
        """What holds the rows of a shard of this process."""
        if self.factory is not None:
            return self.factory(shard, configs).store
        counts = counts_of(self.filters[shard])
        return MultiTypeTable(self.configs(shard, configs), filter=counts).store

    def where(self, one_request: bool, deadline_ms: int) -> Here | OverServers:
        """This process without servers, else the servers of the cluster."""
        checks.count("max_rpc_deadline_millis", deadline_ms, least=1)
        if self.num_ps == 0:
            return Here(counts_of(self.filters[0]))
        return OverServers(
            connector(self.num_ps, self.make, self.configs),
            one_request=one_request,
            max_rpc_deadline_millis=deadline_ms,
        )

    def attached(self, built: T) -> T:
        """`built`, its tables followed by the clients of their shards.

        The factory attaches the tables that it makes; those of servers are attached here.
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
    """One filter for all ranks, or one for each."""
    QueueDepths.of(queue_configs)  # before a group is made
    reads, updates = exchanges(device)
    if checks.count("shard_num", shard_num) != reads.ranks:
        raise InputError(
            f"shard_num is {shard_num}, and the world has {reads.ranks} ranks; every rank holds "
            f"one shard, so they must be equal."
        )
    own = filters[reads.rank] if isinstance(filters, Sequence) else filters
    counts = counts_of(own)
    return OverRanks(shard_num, reads, updates, counts, queue_configs)
