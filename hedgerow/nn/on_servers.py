"""Puts the rows of a model on servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from ..core.errors import ConfigError, StateError
from ..ps.connect import connect
from ..ps.curve import ClientKeys
from ..ps.server_tables import ServerTables
from ..ps.some_tables import TablesOfShard
from ..sharding.all_to_all_tables import AllToAllTables
from ..sharding.exchange import WIRES
from ..tables.multi.host_tables import HostTables
from ..tables.multi.multi_config import MultiConfig
from .collection import Collection
from .routers import routers_of
from .server_group import ServerGroup
from .summary import tables_of


def put_on_servers(
    model: nn.Module,
    collections: Sequence[Collection],
    servers: Sequence[str],
    *,
    wire: str,
    dedup: bool,
    keys: ClientKeys | Path | str | None,
) -> None:
    """Every module of the model reads and updates rows on `servers` from now on."""
    _check(model, collections)
    # All servers place the ids of a table by one key; the first client's stays.
    config = MultiConfig.of(
        {
            name: replace(table.config, slot_key=table.slot_key)
            for name, table in tables_of(model).items()
        }
    )
    configs = dict(zip(config.names, config.configs, strict=True))
    shards = connect(servers, configs, wire=WIRES[wire], keys=keys)
    group = ServerGroup(tuple(shards), config)
    routers = routers_of(model, group.count)
    for one in collections:
        names = one.store.names
        of = [config.at(name) for name in names]
        own = shards
        if names != config.names:
            own = [TablesOfShard(shard, of, config.segment_splits) for shard in shards]
        rules = [routers[name] for name in names]
        mine = {name: configs[name] for name in names}
        one.set_store(ServerTables(own, mine, rules, dedup=dedup), servers=group)


def _check(model: nn.Module, collections: Sequence[Collection]) -> None:
    for one in collections:
        if isinstance(one.store, AllToAllTables | ServerTables):
            raise StateError("the model is distributed already; call hr.distribute once.")
        if not isinstance(one.store, HostTables):
            raise StateError(
                "the model has tables on a device or in two tiers, and servers hold rows in their "
                "own memory; distribute it before model.to('cuda'), and without keep_on_disk."
            )
    for name, table in tables_of(model).items():
        if table.size():
            raise StateError(
                f"distribute of a model with rows: table {name!r} has {table.size()}. Distribute "
                f"it first, then hr.load: every server takes the rows it owns."
            )
        if table.config.evict is not None:
            raise ConfigError(
                f"table {name!r} has the rule {table.config.evict!r}, which servers do not run; "
                f"leave evict out."
            )
