"""The original's `distributed_ps_factory`: six ways to build tables, by its names and arguments.

What is built is told in `hedgerow.nn.assemble`, where servers and ranks are in `cluster`. Tables
have the original's names, and ours beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from ..tables.multi.merged import MergedMultiTypeTable
from ..tables.multi.multi_type import MultiTypeTable
from ..tables.multi.slot_tables import SlotTables
from .cluster import cluster, connector, exchanges
from .describe import original_names
from .hash_filters import HashFilter, counts_of, create_hash_filters, filtered
from .multi_hash_table import (
    CachedConfig,
    MultiHashTable,
    MultiHashTableFactory,
    convert_to_cached_config,
)
from .partitioned_features import partitioned_features
from .sync_attach import attach_clients

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
    filters, clients = _lists(num_ps, hash_filters, sync_clients)
    checks.flag("reduce_network_packets", reduce_network_packets)
    where = _here_or_servers(num_ps, filters, reduce_network_packets, max_rpc_deadline_millis)
    configs = filtered(slot_to_config, filters[0])
    built = assemble(configs, where, native=False, merge=True, names_of=original_names)
    return attach_clients(built, clients)


def create_native_multi_hash_table(
    num_ps: int,
    slot_to_config: Configs,
    hash_filters: Sequence[Filter],
    sync_clients: Sequence[object | None] | None = None,
    max_rpc_deadline_millis: int = DEADLINE_MS,
) -> SlotTables:
    """All slots in one object, here or on every server."""
    filters, clients = _lists(num_ps, hash_filters, sync_clients)
    if num_ps == 0:
        checks.count("max_rpc_deadline_millis", max_rpc_deadline_millis, least=1)
        return MultiHashTable.from_configs(slot_to_config, filters[0], clients[0])
    where = _here_or_servers(num_ps, filters, True, max_rpc_deadline_millis)
    built = assemble(filtered(slot_to_config, filters[0]), where)
    return attach_clients(built, clients)


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
) -> PartitionedTable:
    """The partitioned flow, here, on servers, or with `enable_gpu_emb` over ranks.

    With `enable_gpu_emb` rows are in the memory of each rank's GPU, where layouts and gradients are
    then, too; on a machine without one they are in host memory.

    The keyword arguments are what the original reads from its parser: configs of features, layouts,
    how ids are pooled, the dims of slices before they were merged into segments.
    """
    if feature_name_to_config is None:
        raise InputError("feature_name_to_config is not given; partitioned tables are of features.")
    native = checks.flag("use_native_multi_hash_table", use_native_multi_hash_table)
    filters, clients = _lists(num_ps, hash_filters, sync_clients)
    half = checks.flag("transfer_float16", transfer_float16)
    where: Where
    device = None
    if checks.flag("enable_gpu_emb", enable_gpu_emb):
        found = get_device(rank_info())
        device = found if found.type == "cuda" else None
        where = _over_ranks(num_ps, filters, queue_configs, found)
        filter = filters[where.exchange.rank]
    else:
        where = _here_or_servers(num_ps, filters, True, max_rpc_deadline_millis)
        filter = filters[0]
    features, tables = partitioned_features(
        filtered(feature_name_to_config, filter),
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
        transfer_float16=half,
        queue_configs=queue_configs,
        device=device,
    )
    return attach_clients(built, clients)


# ---- what the factories share


def _lists(
    num_ps: int,
    hash_filters: Sequence[Filter] | None,
    sync_clients: Sequence[object | None] | None,
) -> tuple[list[Filter], list[object | None]]:
    """One filter and one client a shard; here, any number of clients, of which the first counts."""
    shards = max(checks.count("num_ps", num_ps), 1)
    filters: list[Filter] = [None] * shards if hash_filters is None else list(hash_filters)
    if len(filters) != shards:
        raise InputError(
            f"{num_ps} servers but {len(filters)} hash filters; give {shards}, one a shard."
        )
    clients: list[object | None] = [None] * shards
    if sync_clients is not None:
        clients = list(sync_clients)
    if num_ps > 0 and len(clients) != num_ps:
        raise InputError(f"{num_ps} servers but {len(clients)} sync clients; give one a server.")
    return filters, clients[:shards] or [None]


def _here_or_servers(
    num_ps: int, filters: Sequence[Filter], one_request: bool, deadline_ms: int
) -> Here | OverServers:
    checks.count("max_rpc_deadline_millis", deadline_ms, least=1)
    counts = [counts_of(one) for one in filters]
    if num_ps == 0:
        return Here(counts[0])
    return OverServers(
        connector(num_ps, counts), one_request=one_request, max_rpc_deadline_millis=deadline_ms
    )


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
