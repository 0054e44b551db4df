"""Describes what a factory built: its layers, its checkpoint names, and its sync clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...core.errors import DtypeError
from ...ps.followed_tables import followed_tables
from ...ps.remote_shard import RemoteShard
from ...ps.shard import Fp16Shard, Shard, ShardView
from ...sharding.all_to_all_tables import ShardStore
from ...tables.changes import ChangeSource, SyncClient, checked_client
from .merged import MergedMultiTypeTable, MergedSlots
from .multi_hash_table import NATIVE_NAME, MultiHashTable
from .multi_type import MultiTypeTable, NativeMultiTable
from .on_servers import DistributedMultiTypeTable, DistributedTable
from .over_ranks import AllToAllMultiTypeTable
from .partitioned import PartitionedTable
from .partitioned_shards import LocalShards, RankShards, ServerShards
from .slot_tables import SlotStores, SlotTables

TABLE_NAME = "MonolithHashTable_"


def monolith_names(group: MergedSlots) -> list[str]:
    """Returns Monolith's names of the table that slots share, without the shard.

    The usual one is first.

    >>> monolith_names(MergedSlots("any", ("slot0", "slot1")))
    ['MonolithHashTable_e21904dd414d1780e5fc904866dc69c2']
    """
    return [TABLE_NAME + name for name in group.monolith_names]


def chain(table: object) -> list[str]:
    """Returns the layers of a built table, outermost first, as named in the specification."""
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
    raise DtypeError(f"{type(table).__name__} is not a table that a factory builds.")


def _held(kind: type) -> list[str]:
    return ["NativeMultiTable"] if issubclass(kind, NativeMultiTable) else _LAYERS


_LAYERS = ["MultiTypeTable", "HashTable"]


def shared_names(table: object) -> list[str]:
    """Returns Monolith's names of what this process accesses, one per table and shard."""
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
    raise DtypeError(f"{type(table).__name__} is not a table that a factory builds.")


def _suffixes(table: PartitionedTable) -> list[str]:
    if isinstance(table.shards, RankShards):
        return [str(table.shards.exchange.rank)]
    native = issubclass(table.holds, NativeMultiTable)
    if table.is_local:
        return ["0"] if native else [""]  # Monolith's two names of local tables
    return _numbers(table.shards.count)


def holds_native(table: object) -> bool:
    """Returns whether all tables of a shard are one object, which receivers know by one name."""
    if isinstance(table, MergedMultiTypeTable):
        return holds_native(table.below)
    holder = table.local if isinstance(table, AllToAllMultiTypeTable) else table
    return issubclass(getattr(holder, "holds", type(holder)), NativeMultiTable)


def names_on(table: object, names: tuple[str, ...], suffixes: list[str]) -> list[str]:
    """Returns Monolith's names of tables on the shards with these suffixes."""
    if holds_native(table):
        return [NATIVE_NAME + suffix for suffix in suffixes]
    return [f"{name}_{suffix}" if suffix else name for name in names for suffix in suffixes]


def _numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def shards_of(table: object) -> list[Shard]:
    """Returns the servers behind a table. Empty if rows are in this process or over ranks."""
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
    while isinstance(shard, Fp16Shard | ShardView):
        shard = shard.shard
    return shard


def is_remote(table: object) -> bool:
    """Returns whether rows are on servers in other processes."""
    return any(isinstance(shard, RemoteShard) for shard in shards_of(table))


T = TypeVar("T", bound=SlotTables | PartitionedTable)


@dataclass(frozen=True, slots=True, eq=False)
class _ShardTables:
    """The tables of one shard, the index of their client, and Monolith's suffix of their names."""

    client: int
    suffix: str
    tables: Mapping[str, ChangeSource]


def attach_clients(built: T, clients: Sequence[object | None]) -> T:
    """Makes client i follow the tables of shard i, if this process can access them.

    Over ranks it can access only its own shard. Receivers know tables by Monolith's names.
    """
    built.sync_clients = tuple(clients)
    followers = [None if one is None else checked_client(one) for one in clients]
    if any(one is not None for one in followers):  # connect only if there is a client
        for held in _shards(built):
            client = followers[held.client]
            if client is not None:
                _attach(client, built, held)
    return built


def _attach(client: SyncClient, built: object, held: _ShardTables) -> None:
    names = names_on(built, tuple(held.tables), [held.suffix])
    if holds_native(built):
        client.attach_multi(names[0], held.tables)
        return
    for name, table in zip(names, held.tables.values(), strict=True):
        client.attach(name, table)


def _shards(built: object) -> list[_ShardTables]:
    if isinstance(built, MergedMultiTypeTable):
        return _shards(built.below)
    servers = shards_of(built)
    if servers:
        return [_ShardTables(i, str(i), followed_tables(shard)) for i, shard in enumerate(servers)]
    if isinstance(built, AllToAllMultiTypeTable):
        return [_ShardTables(0, str(built.store.exchange.rank), _tables(built.local.store))]
    if isinstance(built, PartitionedTable) and isinstance(built.shards, RankShards):
        rank = built.shards.exchange.rank
        return [_ShardTables(rank, str(rank), _tables(built.shards.local))]
    if isinstance(built, PartitionedTable) and isinstance(built.shards, LocalShards):
        suffix = "0" if holds_native(built) else ""
        return [
            _ShardTables(i, suffix, _tables(store)) for i, store in enumerate(built.shards.stores)
        ]
    assert isinstance(built, MultiTypeTable), f"no factory builds a {type(built).__name__}"
    return [_ShardTables(0, "", _tables(built.store))]


def _tables(store: ShardStore) -> dict[str, ChangeSource]:
    return {name: store.table(k) for k, name in enumerate(store.names)}
