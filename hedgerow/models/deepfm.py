"""DeepFM: a factorization machine and a stack of linear layers over the same vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core import checks
from ..core.errors import ConfigError
from ..core.id_batch import IdBatch
from ..core.shapes import Float32
from ..nn.embedding_modules import EmbeddingBags
from ..tables.config import Segment, Table
from ..tables.initializers import Initializer, Uniform, Zeros
from ..tables.optimizers import Adagrad, Optimizer
from .layers import common_dim, mlp


class DeepFM(nn.Module):
    """The DeepFM model. Each id has one row with a bias and a vector, each with its own optimizer.

    The logit is the sum of the biases, the products of all pairs of features, a linear function of
    the dense numbers, and the output of a stack of linear layers over vectors and numbers. `hidden`
    are the widths of that stack. `bias` is the optimizer of the biases, `init` and `optimizer` are
    those of the vectors. Other arguments go to `hr.EmbeddingBags`.

    >>> import torch, hedgerow as hr
    >>> tables = [hr.Table("user", 8), hr.Table("item", 8, features=["item", "history"])]
    >>> model = hr.models.DeepFM(tables, dense=4, optimizer=hr.Adagrad(lr=0.1))
    >>> dense, ids, clicked = next(iter(hr.data.clicks(batch_size=16, steps=1)))
    >>> model(dense, ids).shape, [segment.dim for segment in model.bags.tables[0].segments]
    (torch.Size([16]), [1, 8])
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        dense: int = 0,
        hidden: Sequence[int] = (64, 32),
        init: Initializer | None = None,
        optimizer: Optimizer | None = None,
        bias: Optimizer | None = None,
        **defaults: Any,
    ) -> None:
        super().__init__()
        dim = common_dim("DeepFM", tables)
        checks.whole("DeepFM", "dense", dense)
        init, optimizer = init or Uniform(0.05), optimizer or Adagrad(lr=0.05)
        wide = [_with_bias(table, init, optimizer, bias or optimizer) for table in tables]
        self.bags = EmbeddingBags(wide, **defaults)
        self.over = FactorizationMachine(sum(len(t.features) for t in tables), dense, dim, hidden)

    def forward(
        self, dense: Float32[Tensor, "samples columns"], ids: IdBatch
    ) -> Float32[Tensor, "samples"]:
        """Returns one logit per sample."""
        return self.over(dense, list(self.bags(ids).values()))


class FactorizationMachine(nn.Module):
    """The dense part of DeepFM, which `torch.compile` can compile as a whole."""

    def __init__(self, features: int, dense: int, dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.linear = nn.Linear(dense, 1) if dense else None
        self.deep = mlp(features * dim + dense, hidden, 1)
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(
        self, dense: Float32[Tensor, "samples columns"], vectors: list[Tensor]
    ) -> Float32[Tensor, "samples"]:
        """Returns one logit per sample, from dense numbers and one bias and vector per feature."""
        v = torch.stack(vectors, dim=1)
        bias, v = v[:, :, 0].sum(1), v[:, :, 1:]
        # (sum v)^2 - sum v^2 is twice the sum of the products of all pairs.
        products = (v.sum(1).square() - v.square().sum(1)).sum(1) / 2
        logit = self.offset + bias + products
        if self.linear is None:
            return logit + self.deep(v.flatten(1)).squeeze(1)
        logit = logit + self.linear(dense).squeeze(1)
        return logit + self.deep(torch.cat([v.flatten(1), dense], dim=1)).squeeze(1)


def _with_bias(table: Table, init: Initializer, optimizer: Optimizer, bias: Optimizer) -> Table:
    """Returns the table with one more column in front: the bias of an id."""
    if table.segments:
        raise ConfigError(
            f"Table({table.name!r}) has segments; DeepFM makes its own: a bias and a vector."
        )
    parts = (
        Segment(1, Zeros(), bias),
        Segment(table.dim, table.init or init, table.optimizer or optimizer),
    )
    return replace(table, dim=1 + table.dim, segments=parts, init=None, optimizer=None)
