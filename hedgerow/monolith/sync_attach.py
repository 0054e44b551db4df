"""Gives the tables that a factory built to the sync clients of their shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..nn.partitioned_table import PartitionedTable
from ..ps.following import followed_tables
from ..sharding.all_to_all_front import AllToAllMultiTypeTable
from ..sharding.all_to_all_tables import ShardStore
from ..sharding.shards import LocalShards, RankShards
from ..tables.followed import Followed, SyncClient, checked_client
from ..tables.multi.merged import MergedMultiTypeTable
from ..tables.multi.multi_type import MultiTypeTable
from ..tables.multi.slot_tables import SlotTables
from .describe import holds_native, names_on, shards_of

T = TypeVar("T", bound=SlotTables | PartitionedTable)


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """The tables of one shard: of which client, and what the original adds to their names."""

    client: int
    suffix: str
    tables: Mapping[str, Followed]


def attach_clients(built: T, clients: Sequence[object | None]) -> T:
    """Client i follows the tables of shard i, as far as this process reaches them.

    Over ranks it reaches its own shard. Receivers know tables by the original's names.
    """
    built.sync_clients = tuple(clients)
    followers = [None if one is None else checked_client(one) for one in clients]
    if any(one is not None for one in followers):  # no connection is made for nobody
        for held in _shards(built):
            client = followers[held.client]
            if client is not None:
                _attach(client, built, held)
    return built


def _attach(client: SyncClient, built: object, held: _Held) -> None:
    names = names_on(built, tuple(held.tables), [held.suffix])
    if holds_native(built):
        client.attach_multi(names[0], held.tables)
        return
    for name, table in zip(names, held.tables.values(), strict=True):
        client.attach(name, table)


def _shards(built: object) -> list[_Held]:
    if isinstance(built, MergedMultiTypeTable):
        return _shards(built.below)
    servers = shards_of(built)
    if servers:
        return [_Held(i, str(i), followed_tables(shard)) for i, shard in enumerate(servers)]
    if isinstance(built, AllToAllMultiTypeTable):
        return [_Held(0, str(built.store.exchange.rank), _tables(built.local.store))]
    if isinstance(built, PartitionedTable) and isinstance(built.shards, RankShards):
        rank = built.shards.exchange.rank
        return [_Held(rank, str(rank), _tables(built.shards.local))]
    if isinstance(built, PartitionedTable) and isinstance(built.shards, LocalShards):
        suffix = "0" if holds_native(built) else ""
        return [_Held(i, suffix, _tables(store)) for i, store in enumerate(built.shards.stores)]
    assert isinstance(built, MultiTypeTable), f"no factory builds a {type(built).__name__}"
    return [_Held(0, "", _tables(built.store))]


def _tables(store: ShardStore) -> dict[str, Followed]:
    return {name: store.table(k) for k, name in enumerate(store.names)}
