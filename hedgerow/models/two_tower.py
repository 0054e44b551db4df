"""Two towers that compute a user vector and an item vector, whose product is the logit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core import checks
from ..core.errors import ConfigError
from ..core.id_batch import IdBatch
from ..core.shapes import Float32
from ..nn.embedding_modules import EmbeddingBags
from ..tables.config import Table
from .layers import check_pooled, mlp


class TwoTower(nn.Module):
    """The two-tower model: the logit is the inner product of a user vector and an item vector.

    The item tower reads the features in `items`. The user tower reads all other features and the
    dense numbers. Both vectors have width `dim`. Each can be computed without the other, to search
    items by inner product. Other arguments go to `hr.EmbeddingBags`.

    >>> import torch, hedgerow as hr
    >>> tables = [hr.Table("user", 8), hr.Table("item", 8, features=["item", "history"])]
    >>> model = hr.models.TwoTower(tables, items=["item"], dense=4, dim=16)
    >>> dense, ids, clicked = next(iter(hr.data.clicks(batch_size=8, steps=1)))
    >>> model(dense, ids).shape, model.item_vectors(ids.select(["item"])).shape
    (torch.Size([8]), torch.Size([8, 16]))
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        items: Sequence[str],
        dense: int = 0,
        hidden: Sequence[int] = (64,),
        dim: int = 32,
        **defaults: Any,
    ) -> None:
        super().__init__()
        check_pooled("TwoTower", tables)
        checks.whole("TwoTower", "dense", dense)
        dims = {feature: table.dim for table in tables for feature in table.features}
        for feature in items:
            if feature not in dims:
                checks.unknown("feature", feature, dims)
        self.items = tuple(dict.fromkeys(items))  # a feature that is named twice counts once
        self.users = tuple(feature for feature in dims if feature not in items)
        if not self.items or not self.users:
            raise ConfigError(
                f"TwoTower.items is {list(items)} of {list(dims)}; each tower needs a feature."
            )
        self.bags = EmbeddingBags(tables, **defaults)
        self.user_tower = mlp(dense + sum(dims[f] for f in self.users), hidden, dim)
        self.item_tower = mlp(sum(dims[f] for f in self.items), hidden, dim)
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(
        self, dense: Float32[Tensor, "samples columns"], ids: IdBatch
    ) -> Float32[Tensor, "samples"]:
        """Returns one logit per pair of a user and an item."""
        found = self.bags(ids)
        users = self._users(dense, [found[f] for f in self.users])
        items = self.item_tower(torch.cat([found[f] for f in self.items], dim=1))
        return (users * items).sum(1) + self.offset

    def user_vectors(
        self, dense: Float32[Tensor, "samples columns"], ids: IdBatch
    ) -> Float32[Tensor, "samples dim"]:
        """Returns the vectors of users. `ids` may lack the features of items."""
        return self._users(dense, list(self.bags(ids, self.users).values()))

    def item_vectors(self, ids: IdBatch) -> Float32[Tensor, "samples dim"]:
        """Returns the vectors of items. `ids` may lack the features of users."""
        return self.item_tower(torch.cat(list(self.bags(ids, self.items).values()), dim=1))

    def _users(self, dense: Tensor, vectors: list[Tensor]) -> Tensor:
        return self.user_tower(torch.cat([dense, *vectors], dim=1))
