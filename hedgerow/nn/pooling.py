"""How the rows of a sample become one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..core.id_batch import IdBatch
from ..core.ids import Ragged
from ..core.shapes import Float
from ..ops.combiners import FirstN, ReduceMean, ReduceSum
from .reading import Reading

Pooling = str | tuple[str, int]


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
    count = bags.lengths().unsqueeze(1)
    if pooling == "sqrtn":
        return ReduceSum().combine(bags, rows) / count.clamp(min=1).sqrt()
    if pooling == "max":
        largest = torch.segment_reduce(rows, "max", offsets=bags.row_splits, initial=-torch.inf)
        return torch.where(count > 0, largest, 0.0)
    raise ConfigError(f"pooling is {pooling!r}; use sum, mean, sqrtn, max or ('first', n).")


def pool_features(batch: IdBatch, reading: Reading, rows: Sequence[Tensor]) -> list[Tensor]:
    """The vectors of every feature of a reading, from its rows; "none" leaves them as they are."""
    single = batch.weights is None and batch.has_one_id_each()
    pooled = []
    for feature, part in zip(reading.features, rows, strict=True):
        if feature.pooling == "none" or (single and not isinstance(feature.pooling, tuple)):
            pooled.append(part)
        else:
            weights = batch.weights_of(feature.name)
            pooled.append(pool(batch.feature(feature.name), part, feature.pooling, weights))
    return pooled
