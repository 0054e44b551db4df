"""The tables of a shard as those who follow their changes see them, wherever they lie."""

from __future__ import annotations

from ..core.errors import NotSupportedError
from ..tables.host import HostTable
from .half import HalfShard
from .remote_shard import RemoteShard
from .remote_table import RemoteTable
from .shard import LocalShard, Shard
from .some_tables import TablesOfShard
from .tickets import Patience

# Who follows several servers asks them one after the other: one that is away must not hold up the
# rest, and what was not answered is asked for again.
_PATIENCE = Patience(5.0, 1.0)


def followed_tables(shard: Shard) -> dict[str, HostTable | RemoteTable]:
    """Every table of a shard by name; a server is asked over a connection of its own.

    That connection ends with the last of its tables.

    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> store = HostTables({"item": TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))})
    >>> followed_tables(LocalShard(store))["item"] is store.table(0)
    True
    """
    if isinstance(shard, HalfShard):
        return followed_tables(shard.shard)
    if isinstance(shard, TablesOfShard):
        every = followed_tables(shard.shard)
        return {name: every[name] for name in shard.names}
    if isinstance(shard, LocalShard):
        return dict(zip(shard.names, shard.store.tables, strict=True))
    if isinstance(shard, RemoteShard):
        own = _again(shard)
        return {name: RemoteTable(own, k) for k, name in enumerate(own.names)}
    raise NotSupportedError(f"changes of a {type(shard).__name__} cannot be followed.")


def _again(shard: RemoteShard) -> RemoteShard:
    """The same tables over another connection, on which a server that is away is an error."""
    connection = shard.connection
    configs = dict(zip(shard.config.names, shard.config.configs, strict=True))
    made = RemoteShard(connection.address, configs, name=connection.name, keys=connection.keys)
    made.connection.patience = _PATIENCE
    return made
