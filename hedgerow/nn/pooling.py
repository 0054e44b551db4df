"""How the rows of a sample become one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ..core.errors import ConfigError
from ..core.ids import Ragged
from ..core.shapes import Float
from ..ops.combiners import FirstN, ReduceMean, ReduceSum
from ..tables.bags import Bags, Pooling


def pool(
    bags: Ragged,
    rows: Float[Tensor, "n dim"],
    pooling: Pooling,
    weights: Float[Tensor, "n"] | None = None,
) -> Tensor:
    """One vector a bag; of an empty one, zeros. `("first", n)` gives [bags, n, dim].

    >>> bags, rows = Ragged.from_lists([[7, 8], [], [9]]), torch.tensor([[1.0], [3.0], [5.0]])
    >>> pool(bags, rows, "mean").tolist()
    [[2.0], [0.0], [5.0]]
    >>> pool(bags, rows, ("first", 1)).tolist()
    [[[1.0]], [[0.0]], [[5.0]]]
    """
    if weights is not None:
        rows = rows * weights.unsqueeze(1)
    if isinstance(pooling, tuple):
        return FirstN(pooling[1]).combine(bags, rows)
    if pooling == "sum":
        return ReduceSum().combine(bags, rows)
    if pooling == "mean":
        return ReduceMean().combine(bags, rows)
    if pooling == "sqrtn":
        count = bags.lengths().unsqueeze(1)
        return ReduceSum().combine(bags, rows) / count.clamp(min=1).sqrt()
    if pooling == "max":
        return _largest(bags, rows)
    raise ConfigError(f"pooling is {pooling!r}; use sum, mean, sqrtn, max or ('first', n).")


def _largest(bags: Ragged, rows: Float[Tensor, "n dim"]) -> Float[Tensor, "bags dim"]:
    """The largest value of each column; equal ones: the first alone gets the gradient.

    These are the ties of `nn.EmbeddingBag(mode="max")`. `torch.segment_reduce` would divide a
    gradient among equal values only where it is positive.
    """
    if not bags.rows:
        return rows.new_empty(0, rows.shape[1])
    places = torch.arange(rows.shape[0], device=rows.device)
    return embedding_bag(places, rows, bags.row_splits, mode="max", include_last_offset=True)


def pool_features(bags: Bags, rows: Sequence[Tensor]) -> list[Tensor]:
    """The vectors of every feature, from its rows; "none" leaves them as they are."""
    batch = bags.batch
    single = batch.weights is None and batch.has_one_id_each()
    pooled = []
    for feature, part in zip(bags.group.features, rows, strict=True):
        if feature.pooling == "none" or (single and not isinstance(feature.pooling, tuple)):
            pooled.append(part)
        else:
            weights = batch.weights_of(feature.name)
            pooled.append(pool(batch.feature(feature.name), part, feature.pooling, weights))
    return pooled
