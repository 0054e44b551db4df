"""Bags of ids in, one vector a sample and feature out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..core.errors import ConfigError
from ..core.id_batch import IdBatch
from ..core.shapes import Float
from ..tables.table import Table
from .collection import Collection
from .compiling import between_graphs


class EmbeddingBags(Collection):
    """Vectors of the bags of every feature, pooled as its table says.

    Arguments beside the tables stand in for what a table leaves open: `init`, `optimizer`, `admit`,
    `evict`. `clip` limits the gradient of each row.

    >>> import torch, hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2), hr.Table("item", 2, features=["seen"])],
    ...                         init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    >>> batch = hr.IdBatch.from_lists({"user": [[7], [8]], "seen": [[1, 2], []]})
    >>> vectors = bags(batch)
    >>> {name: tuple(v.shape) for name, v in vectors.items()}
    {'user': (2, 2), 'seen': (2, 2)}
    >>> sum(v.sum() for v in vectors.values()).backward()
    >>> bags.store.size(), bags.eval()(batch)["seen"].tolist()
    (4, [[-2.0, -2.0], [0.0, 0.0]])
    """

    def __init__(self, tables: Sequence[Table], **defaults: Any) -> None:
        super().__init__(tables, **defaults)
        for table in self.tables:
            if table.pooling == "none":
                raise ConfigError(
                    f"Table({table.name!r}).pooling is 'none'; use hr.Embeddings for unpooled rows."
                )

    @between_graphs
    def forward(
        self, batch: IdBatch, features: Sequence[str] | None = None
    ) -> dict[str, Float[Tensor, "samples dim"]]:
        """Vectors by feature, in the order in which tables and features were declared.

        With `features`, of these alone and in their order; the batch need not have the others.
        """
        bags = self.bags(batch, features)
        vectors = self.outputs(bags)
        return {bags.group.features[i].name: vectors[i] for i in bags.group.order}
