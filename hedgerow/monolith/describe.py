"""What a factory has built: the layers down to the rows, and the names in checkpoints."""

from __future__ import annotations

from ..core.errors import DtypeError
from ..nn.partitioned_table import PartitionedTable
from ..nn.server_shards import ServerShards
from ..ps.distributed import DistributedMultiTypeTable, DistributedTable
from ..ps.half import HalfShard
from ..ps.remote_shard import RemoteShard
from ..ps.shard import Shard
from ..ps.some_tables import TablesOfShard
from ..sharding.all_to_all_front import AllToAllMultiTypeTable
from ..sharding.shards import RankShards
from ..tables.multi.merged import Group, MergedMultiTypeTable
from ..tables.multi.multi_type import MultiTypeTable
from ..tables.multi.native_multi import NativeMultiTable
from ..tables.multi.slot_stores import SlotStores
from .multi_hash_table import NATIVE_NAME, MultiHashTable

TABLE_NAME = "MonolithHashTable_"


def original_names(group: Group) -> list[str]:
    """The original's names of the table that slots share, on whatever shard; the usual one first.

    >>> original_names(Group("any", ("slot0", "slot1")))
    ['MonolithHashTable_e21904dd414d1780e5fc904866dc69c2']
    """
    return [TABLE_NAME + name for name in group.original_names]


def chain(table: object) -> list[str]:
    """The layers of a built table, outermost first, by the names of the specification."""
    if isinstance(table, MergedMultiTypeTable):
        return ["MergedMultiTypeTable", *chain(table.below)]
    if isinstance(table, AllToAllMultiTypeTable):
        return ["AllToAllMultiTypeTable", *chain(table.local)]
    if isinstance(table, SlotStores):
        return ["MultiTypeTable", *chain(next(iter(table.stores.values())))]
    if isinstance(table, DistributedTable):
        return ["DistributedTable", "HashTable"]
    if isinstance(table, DistributedMultiTypeTable):
        return ["DistributedMultiTypeTable", *_held(table.holds)]
    if isinstance(table, PartitionedTable):
        return ["PartitionedTable", *_held(table.holds)]
    if isinstance(table, NativeMultiTable | MultiTypeTable):
        return _held(type(table))
    raise DtypeError(f"{type(table).__name__} is no table that a factory builds.")


def _held(kind: type) -> list[str]:
    return ["NativeMultiTable"] if issubclass(kind, NativeMultiTable) else _LAYERS


_LAYERS = ["MultiTypeTable", "HashTable"]


def shared_names(table: object) -> list[str]:
    """The original's names of what this process reaches, one for every table and shard."""
    if isinstance(table, MergedMultiTypeTable):
        return shared_names(table.below)
    if isinstance(table, AllToAllMultiTypeTable):
        return names_on(table, table.names, [str(table.store.exchange.rank)])
    if isinstance(table, SlotStores):
        return names_on(table, table.names, _numbers(len(shards_of(table))))
    if isinstance(table, DistributedMultiTypeTable):
        return names_on(table, table.names, _numbers(len(shards_of(table))))
    if isinstance(table, PartitionedTable):
        return names_on(table, table.shards.names, _suffixes(table))
    if isinstance(table, MultiHashTable):
        return [table.shared_name]
    if isinstance(table, MultiTypeTable):
        return list(table.names)
    raise DtypeError(f"{type(table).__name__} is no table that a factory builds.")


def _suffixes(table: PartitionedTable) -> list[str]:
    if isinstance(table.shards, RankShards):
        return [str(table.shards.exchange.rank)]
    native = issubclass(table.holds, NativeMultiTable)
    if table.is_local:
        return ["0"] if native else [""]  # the original's two ways to name what is local
    return _numbers(table.shards.count)


def holds_native(table: object) -> bool:
    """Whether all tables of a shard are one object, so that receivers know them by one name."""
    if isinstance(table, MergedMultiTypeTable):
        return holds_native(table.below)
    holder = table.local if isinstance(table, AllToAllMultiTypeTable) else table
    return issubclass(getattr(holder, "holds", type(holder)), NativeMultiTable)


def names_on(table: object, names: tuple[str, ...], suffixes: list[str]) -> list[str]:
    """The original's names of tables, on the shards of these suffixes."""
    if holds_native(table):
        return [NATIVE_NAME + suffix for suffix in suffixes]
    return [f"{name}_{suffix}" if suffix else name for name in names for suffix in suffixes]


def _numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def shards_of(table: object) -> list[Shard]:
    """The servers below a table; none where rows are in this process or over ranks."""
    if isinstance(table, MergedMultiTypeTable):
        return shards_of(table.below)
    if isinstance(table, SlotStores):
        return shards_of(next(iter(table.stores.values())))
    if isinstance(table, DistributedTable):
        return [_whole(shard) for shard in table.shards]
    if isinstance(table, DistributedMultiTypeTable):
        return [_whole(shard) for shard in table.store.shards]
    if isinstance(table, PartitionedTable) and isinstance(table.shards, ServerShards):
        return [_whole(shard) for shard in table.shards.shards]
    return []


def _whole(shard: Shard) -> Shard:
    while isinstance(shard, HalfShard | TablesOfShard):
        shard = shard.shard
    return shard


def is_remote(table: object) -> bool:
    """Whether rows are on servers of other processes."""
    return any(isinstance(shard, RemoteShard) for shard in shards_of(table))
