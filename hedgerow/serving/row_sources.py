"""What a publisher reads of a model: one source for each shard of its rows that is in reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..core.checks import CPU
from ..core.errors import NotSupportedError
from ..nn.collection import collections_of
from ..nn.following import row_shards
from ..sync.shard_source import ShardSource
from ..sync.source import HostSource, RowSource
from ..tables.followed import RowShard


def row_sources(model: nn.Module) -> list[RowSource]:
    """The rows of this process, those that its rank owns, or those of each of its servers.

    Every rank publishes its own rows. Of several processes that train on the same servers, one
    publishes.

    >>> import hedgerow as hr
    >>> (source,) = row_sources(hr.EmbeddingBags([hr.Table("user", 2)]))
    >>> source.shard, source.shards, [table.name for table in source.tables]
    (0, 1, ['user'])
    >>> source.close()
    """
    updates = [one.updates for one in collections_of(model)]

    def step() -> int:
        return max(one.step for one in updates)

    made: list[RowSource] = []
    try:
        for shard in row_shards(model):
            made.append(_source(shard, step))
    except BaseException:
        for source in made:
            source.close()
        raise
    return made


def _source(shard: RowShard, step: Callable[[], int]) -> RowSource:
    # Tables of this process have a layout; of those on servers only rows are in reach.
    here: dict[str, Any] = {n: t for n, t in shard.tables.items() if hasattr(t, "layout")}
    for name, table in here.items():
        if table.device != CPU:
            raise NotSupportedError(
                f"publish of table {name!r}, which is on {table.device}; rows are sent from host "
                f"memory. Train it there, or hr.save the model and serve what hr.load brings."
            )
    if here:
        return HostSource(
            list(here.values()),
            routers=shard.routers,
            shard=shard.shard,
            shards=shard.shards,
            step=step,
        )
    away: dict[str, Any] = dict(shard.tables)
    return ShardSource(away, shard.routers, shard=shard.shard, shards=shard.shards, step=step)
