"""How the rows of a sample become one vector."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..core.shapes import Float, Int64

Pooling = str | tuple[str, int]


def pool(
    rows: Float[Tensor, "n dim"],
    splits: Int64[Tensor, "samples+1"],
    pooling: Pooling,
    weights: Float[Tensor, "n"] | None = None,
) -> Tensor:
    """One vector a sample; of an empty bag, zeros. `("first", n)` gives [samples, n, dim].

    >>> rows, splits = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 2, 2, 3])
    >>> pool(rows, splits, "mean").tolist()
    [[2.0], [0.0], [5.0]]
    >>> pool(rows, splits, ("first", 1)).tolist()
    [[[1.0]], [[0.0]], [[5.0]]]
    """
    if weights is not None:
        rows = rows * weights.unsqueeze(1)
    if isinstance(pooling, tuple):
        return _first(rows, splits, pooling[1])
    if pooling == "max":
        largest = torch.segment_reduce(rows, "max", offsets=splits, initial=-torch.inf)
        return torch.where(splits.diff().unsqueeze(1) > 0, largest, 0.0)
    total = torch.segment_reduce(rows, "sum", offsets=splits, initial=0)
    if pooling == "sum":
        return total
    count = splits.diff().clamp(min=1).to(total.dtype).unsqueeze(1)
    if pooling == "mean":
        return total / count
    if pooling == "sqrtn":
        return total / count.sqrt()
    raise ConfigError(f"pooling is {pooling!r}; use sum, mean, sqrtn, max or ('first', n).")


def _first(rows: Tensor, splits: Tensor, n: int) -> Tensor:
    samples = splits.shape[0] - 1
    row = torch.repeat_interleave(
        torch.arange(samples, device=rows.device), splits.diff(), output_size=rows.shape[0]
    )
    place = torch.arange(rows.shape[0], device=rows.device) - splits[row]
    kept = place < n
    out = rows.new_zeros(samples * n, rows.shape[1])
    return out.index_put((row[kept] * n + place[kept],), rows[kept]).view(samples, n, -1)
