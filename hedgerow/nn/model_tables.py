"""The tables of a model: statistics, routers, shards, and a description for comparing ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from ..core.errors import ConfigError, DtypeError, InputError
from ..routing.router import Router
from ..tables.changes import RowShard
from ..tables.config import Table
from ..tables.local_table import LocalTable, TableStats, table_stats
from .embedding_modules import EmbeddingModule, collections_of, ranks_of, servers_of

if TYPE_CHECKING:
    from ..tables.host import HostTable


_HELD = ("index_bytes", "row_bytes", "slack_bytes")  # without output tensors kept for reuse


def stats(thing: LocalTable | nn.Module) -> dict[str, TableStats]:
    """Returns rows, bytes, load and counts of each table of a model, or of one table, by name.

    For a distributed model they describe the shard of this rank. For a model on servers they
    describe all servers together.

    >>> import torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("user", (hr.Segment(4, hr.Zeros(), hr.Sgd()),)))
    >>> _ = table.assign(torch.tensor([1, 2, 3]), torch.ones(3, 4))
    >>> seen = hr.stats(table)["user"]
    >>> seen["name"], seen["rows"], seen["inserted"], seen["row_bytes"]
    ('user', 3, 3, 72)
    >>> hr.stats(hr.EmbeddingBags([hr.Table("item", 2)]))["item"]["rows"]
    0
    """
    if isinstance(thing, nn.Module):
        every = [one.table_stats() for one in collections_of(thing)]
        _check_names([name for told in every for name in told])
        return {name: seen for told in every for name, seen in told.items()}
    if isinstance(thing, LocalTable):
        return {thing.config.name: table_stats(thing)}
    raise DtypeError(
        f"stats of a {type(thing).__name__}; pass a HostTable, a DeviceTable or a model."
    )


def summary(model: nn.Module) -> str:
    """Returns a text with one line per table and one line for the dense weights.

    Rows and bytes are those of this process, or of all servers for a model on servers.

    >>> import hedgerow as hr
    >>> print(hr.summary(hr.EmbeddingBags([hr.Table("item", 2)])))
    table  dim  rows  bytes  optimizer  features
    item     2     0      0  Adagrad    item
    0 rows, 0 dense parameters
    """
    lines = [("table", "dim", "rows", "bytes", "optimizer", "features")]
    rows = 0
    for collection in collections_of(model):
        told = collection.table_stats()
        for declared in collection.tables:
            seen = told[declared.name]
            size, held = int(seen["rows"]), sum(int(seen[part]) for part in _HELD)
            config = declared.resolve(None)
            rules = dict.fromkeys(type(s.optimizer).__name__ for s in config.segments)
            rows += size
            lines.append(
                (
                    declared.name,
                    str(declared.dim),
                    str(size),
                    str(held),
                    ", ".join(rules),
                    ", ".join(declared.features),
                )
            )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    left = (True, False, False, False, True, True)
    shown = [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    ]
    dense = sum(p.numel() for p in model.parameters())
    ranks, servers = ranks_of(model), servers_of(model)
    whose = "" if ranks.count == 1 else f" on rank {ranks.rank} of {ranks.count}"
    if servers is not None:
        whose = f" on {servers.count} servers"
    return "\n".join([*shown, f"{rows} rows{whose}, {dense} dense parameters"])


def tables_of(model: nn.Module) -> dict[str, HostTable]:
    """Returns every table of a model by name. Raises `InputError` if two have the same name."""
    every = collections_of(model)
    _check_names([name for one in every for name in one.store.names])
    return {name: one.table(name) for one in every for name in one.store.names}


def _check_names(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"two tables of the model are named {name!r}; names must differ in a model."
            )


def routers_of(model: nn.Module, shards: int = 1) -> dict[str, Router]:
    """Returns one router per table, by name.

    >>> import hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("user", 2, dist_type="continuous", rows=100)])
    >>> routers_of(model, 4)["user"].block
    25
    """
    return {
        table.name: Router(table.dist_type, shards, rows=table.rows)
        for collection in collections_of(model)
        for table in collection.tables
    }


def row_shards(model: nn.Module) -> list[RowShard]:
    """Returns the shards whose changes this process can follow.

    These are all rows, the rows that this rank owns, or the shards of all servers. Servers are read
    over separate connections. If several processes train on the same servers, only one of them
    should follow.

    >>> import hedgerow as hr
    >>> shards = row_shards(hr.EmbeddingBags([hr.Table("user", 2)]))
    >>> [(one.shard, one.shards, list(one.tables)) for one in shards]
    [(0, 1, ['user'])]
    """
    if not collections_of(model):
        raise InputError("a model without EmbeddingBags or Embeddings has no rows to follow.")
    group = servers_of(model)
    if group is not None:
        from ..ps.followed_tables import followed_tables  # only models on servers need the client

        routers = routers_of(model, group.count)
        return [
            RowShard(i, group.count, followed_tables(shard), routers)
            for i, shard in enumerate(group.shards)
        ]
    ranks = ranks_of(model)
    return [RowShard(ranks.rank, ranks.count, tables_of(model), routers_of(model, ranks.count))]


def describe_model(model: nn.Module, collections: Sequence[EmbeddingModule]) -> dict[str, str]:
    """Returns what ranks must agree on, by name.

    These are the tables of each module, and the number of dense parameters that are trained.

    >>> import hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> describe_model(bags, [bags])["tables of module 0"]
    'user'
    """
    learning = sum(parameter.requires_grad for parameter in model.parameters())
    words = {"dense parameters that learn": str(learning)}
    for number, one in enumerate(collections):
        names = [table.name for table in one.tables]
        words[f"tables of module {number}"] = ", ".join(names)
        for table in one.tables:
            for setting, value in _settings(one, table).items():
                words[f"{setting} of table {table.name!r} in module {number}"] = value
    return words


def _settings(one: EmbeddingModule, table: Table) -> dict[str, str]:
    given = ("dim", "dist_type", "rows", "features", "pooling")
    own = {name: str(getattr(table, name)) for name in given}
    config = one.table(table.name).config
    try:
        made = config.to_dict()
    except ConfigError:  # a rate is a function, which cannot be written as text
        kinds = [f"{type(s.init).__name__}, {type(s.optimizer).__name__}" for s in config.segments]
        made = {"segments": kinds, "seed": config.seed}
    return own | {name: str(value) for name, value in made.items()}
