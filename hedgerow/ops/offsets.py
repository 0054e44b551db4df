"""Where the vector of every occurrence of a key lies in one flat buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.shapes import Int64
from . import arguments


@dataclass(frozen=True, slots=True, eq=False)
class ValueOffset:
    """Offsets by row, distinct key and occurrence, as three flat tensors.

    Distinct key u, counted over all rows, has those from `inner_row_splits[u]` up to
    `inner_row_splits[u + 1]`; row r has the distinct keys from `outer_row_splits[r]` up to
    `outer_row_splits[r + 1]`. The vectors of different keys do not overlap.

    >>> at = ValueOffset(torch.tensor([0, 4, 2]), torch.tensor([0, 2]), torch.tensor([0, 2, 3]))
    >>> at.to_lists()
    [[[0, 4], [2]]]
    """

    values: Int64[Tensor, "n"]
    outer_row_splits: Int64[Tensor, "rows+1"]
    inner_row_splits: Int64[Tensor, "keys+1"]

    def __post_init__(self) -> None:
        for name in ("values", "outer_row_splits", "inner_row_splits"):
            tensor = arguments.typed(f"value_offset.{name}", getattr(self, name), _INT64, (None,))
            arguments.together("value_offset.values", self.values, f"value_offset.{name}", tensor)

    def to_lists(self) -> list[list[list[int]]]:
        """As nested lists."""
        values, outer, inner = (
            part.tolist() for part in (self.values, self.outer_row_splits, self.inner_row_splits)
        )
        keys = [values[a:b] for a, b in pairwise(inner)]
        return [keys[a:b] for a, b in pairwise(outer)]


_INT64 = (torch.int64,)
_MOST = 2**31  # values of one vector, so that no sum of lengths passes 64 bits


def widths(dims: Sequence[int], row_splits: Tensor) -> list[int]:
    """`dims`, one for each row, as ints.

    >>> widths([2, 3], torch.tensor([0, 1]))
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: dims has 2 widths for 1 rows; pass one a row.
    """
    rows = row_splits.shape[0] - 1
    if len(dims) != rows:
        raise InputError(f"dims has {len(dims)} widths for {rows} rows; pass one a row.")
    for dim in dims:
        if isinstance(dim, bool) or not isinstance(dim, int) or not 0 <= dim < _MOST:
            raise InputError(f"dims holds {dim!r}; a width is an int in [0, {_MOST}).")
    return list(dims)


def total_values(row_splits: Tensor, dims: Sequence[int]) -> int:
    """Values of all rows together, `dims[r]` for each entry of row r; it waits for a device."""
    lengths = row_splits.diff()
    return int((lengths * torch.tensor(dims, dtype=torch.int64, device=lengths.device)).sum())
