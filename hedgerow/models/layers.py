"""Layers that the models share: stacks of linear layers, and products of all pairs of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..core import checks
from ..core.errors import ConfigError
from ..core.shapes import Float32
from ..tables.config import Table


def mlp(first: int, hidden: Sequence[int], last: int) -> nn.Sequential:
    """Returns linear layers of these widths, with a ReLU after each but the last.

    >>> [tuple(layer.weight.shape) for layer in mlp(4, (8,), 2) if isinstance(layer, nn.Linear)]
    [(8, 4), (2, 8)]
    """
    widths = [first, *hidden, last]
    for width in widths:
        checks.whole("mlp", "width", width, least=1)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def common_dim(owner: str, tables: Sequence[Table]) -> int:
    """Returns the dim that all tables share. Raises `ConfigError` if their dims differ."""
    dims = {table.name: table.dim for table in tables}
    if len(set(dims.values())) != 1:
        raise ConfigError(f"{owner} needs tables of one dim; given: {dims}.")
    check_pooled(owner, tables)
    return next(iter(dims.values()))


def check_pooled(owner: str, tables: Sequence[Table]) -> None:
    """Raises `ConfigError` unless every feature gives one vector per sample."""
    for table in tables:
        if isinstance(table.pooling, tuple) or table.pooling == "none":
            raise ConfigError(
                f"{owner} needs one vector per sample; Table({table.name!r}).pooling is "
                f"{table.pooling!r}. Use sum, mean, sqrtn or max."
            )


class PairProducts(nn.Module):
    """The inner product of every pair of a sample's vectors: (0, 1), (0, 2), ... (1, 2), ...

    >>> pairs = PairProducts(3)
    >>> pairs(torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])).tolist()
    [[11.0, 17.0, 39.0]]
    """

    pairs: Tensor
    columns: Tensor

    def __init__(self, vectors: int) -> None:
        super().__init__()
        i, j = torch.triu_indices(vectors, vectors, offset=1)
        columns = torch.full((vectors, vectors), len(i))
        columns[i, j] = columns[j, i] = torch.arange(len(i))
        self.register_buffer("pairs", i * vectors + j, persistent=False)
        self.register_buffer("columns", columns.flatten(), persistent=False)

    def forward(
        self, v: Float32[Tensor, "samples vectors dim"]
    ) -> Float32[Tensor, "samples pairs"]:
        """Returns one number per sample and pair."""
        found: Any = _PairProductsFunction.apply(v, self.pairs, self.columns)
        return found


class _PairProductsFunction(torch.autograd.Function):
    """Computes `v @ v.mT` and selects the pairs.

    Autograd would compute a gradient for each factor: two matrix products and a sum. This backward
    makes one product. Let G be the gradient of all products, in which each pair occurs twice. The
    gradient of v is G @ v. `columns` gives the pair of each element of G. Diagonal elements belong
    to no pair; they refer to a column of zeros after the last pair.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, pairs: Tensor, columns: Tensor) -> Tensor:
        """Returns the products of the pairs."""
        ctx.save_for_backward(v, columns)
        return (v @ v.mT).flatten(1).index_select(1, pairs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Returns the gradient of the vectors."""
        v, columns = ctx.saved_tensors
        every = nn.functional.pad(grads[0], (0, 1)).index_select(1, columns)
        return every.view(len(v), v.shape[1], v.shape[1]) @ v, None, None
