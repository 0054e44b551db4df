"""The shards of a model's rows, for those who follow their changes and send them elsewhere."""

from __future__ import annotations

from torch import nn

from ..core.errors import InputError
from ..ps.following import followed_tables
from ..tables.followed import RowShard
from .collection import collections_of, ranks_of, servers_of
from .routers import routers_of
from .summary import tables_of


def row_shards(model: nn.Module) -> list[RowShard]:
    """What this process can follow: all rows, those that its rank owns, or those of every server.

    Servers are asked over connections of their own. Where several processes train on the same
    servers, one of them follows.

    >>> import hedgerow as hr
    >>> shards = row_shards(hr.EmbeddingBags([hr.Table("user", 2)]))
    >>> [(one.shard, one.shards, list(one.tables)) for one in shards]
    [(0, 1, ['user'])]
    """
    if not collections_of(model):
        raise InputError("a model without EmbeddingBags or Embeddings has no rows to follow.")
    group = servers_of(model)
    if group is not None:
        routers = routers_of(model, group.count)
        return [
            RowShard(i, group.count, followed_tables(shard), routers)
            for i, shard in enumerate(group.shards)
        ]
    ranks = ranks_of(model)
    return [RowShard(ranks.rank, ranks.count, tables_of(model), routers_of(model, ranks.count))]
