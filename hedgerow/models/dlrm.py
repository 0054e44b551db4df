"""DLRM: inner products of all pairs of vectors, one of which is computed from the dense numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core import checks
from ..core.id_batch import IdBatch
from ..core.shapes import Float32
from ..nn.embedding_modules import EmbeddingBags
from ..tables.config import Table
from .layers import PairProducts, common_dim, mlp


class DLRM(nn.Module):
    """The DLRM model.

    A bottom stack of linear layers turns the dense numbers into a vector as wide as the tables'
    rows. This vector and the products of all pairs of vectors go through a top stack to one logit.
    `bottom` and `top` are hidden widths. Other arguments go to `hr.EmbeddingBags`.

    >>> import torch, hedgerow as hr
    >>> tables = [hr.Table("user", 8), hr.Table("item", 8, features=["item", "history"])]
    >>> model = hr.models.DLRM(tables, dense=4, optimizer=hr.Adagrad(lr=0.1))
    >>> dense, ids, clicked = next(iter(hr.data.clicks(batch_size=16, steps=1)))
    >>> model(dense, ids).shape
    torch.Size([16])
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        dense: int,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (64,),
        **defaults: Any,
    ) -> None:
        super().__init__()
        dim = common_dim("DLRM", tables)
        checks.whole("DLRM", "dense", dense, least=1)
        self.bags = EmbeddingBags(tables, **defaults)
        self.over = Interaction(sum(len(t.features) for t in tables), dense, dim, bottom, top)

    def forward(
        self, dense: Float32[Tensor, "samples columns"], ids: IdBatch
    ) -> Float32[Tensor, "samples"]:
        """Returns one logit per sample."""
        return self.over(dense, list(self.bags(ids).values()))


class Interaction(nn.Module):
    """The dense part of DLRM, which `torch.compile` can compile as a whole."""

    def __init__(
        self, features: int, dense: int, dim: int, bottom: Sequence[int], top: Sequence[int]
    ) -> None:
        super().__init__()
        vectors = features + 1
        self.bottom = nn.Sequential(mlp(dense, bottom, dim), nn.ReLU())
        self.top = mlp(dim + vectors * (vectors - 1) // 2, top, 1)
        self.products = PairProducts(vectors)

    def forward(
        self, dense: Float32[Tensor, "samples columns"], vectors: list[Tensor]
    ) -> Float32[Tensor, "samples"]:
        """Returns one logit per sample, from the dense numbers and one vector per feature."""
        x = self.bottom(dense)
        v = torch.stack([x, *vectors], dim=1)
        return self.top(torch.cat([x, self.products(v)], dim=1)).squeeze(1)
