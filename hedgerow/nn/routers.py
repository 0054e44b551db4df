"""The owner functions of a model's tables, from the `dist_type` that users gave each."""

from __future__ import annotations

from torch import nn

from ..routing.router import Router
from .collection import collections_of


def routers_of(model: nn.Module, shards: int = 1) -> dict[str, Router]:
    """One router for every table by name.

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
