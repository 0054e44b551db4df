"""Rows of different lengths as one tensor of values and the borders of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import DtypeError
from ..core.shapes import Int64


@dataclass(frozen=True, eq=False)
class Ragged:
    """Row r is `values[row_splits[r] : row_splits[r + 1]]`.

    Building one looks at types and shapes alone; an op looks at the contents of `row_splits`, where
    that costs no wait for a device.

    >>> rows = Ragged.of([[4, 3, 2], [], [1]])
    >>> rows.values.tolist(), rows.row_splits.tolist(), rows.rows
    ([4, 3, 2, 1], [0, 3, 3, 4], 3)
    >>> rows.to_lists()
    [[4, 3, 2], [], [1]]
    """

    values: Tensor
    row_splits: Int64[Tensor, "rows+1"]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Tensor) or self.values.dim() == 0:
            raise DtypeError("Ragged.values must be a torch.Tensor with one value or row an entry.")
        if not torch.compiler.is_compiling():  # it asks for addresses, which a trace has not
            checks.tensor("row_splits", self.row_splits, torch.int64, (None,), self.values.device)

    @staticmethod
    def of(rows: list[list[int]], dtype: torch.dtype = torch.int64) -> Ragged:
        """From nested lists."""
        lengths = torch.tensor([0, *(len(row) for row in rows)])
        flat = [value for row in rows for value in row]
        return Ragged(torch.tensor(flat, dtype=dtype), lengths.cumsum(0))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.row_splits.shape[0] - 1

    @cached_property
    def row_ids(self) -> Int64[Tensor, "n"]:
        """The row of each value; the same tensor every time."""
        return torch.repeat_interleave(
            torch.arange(self.rows, device=self.row_splits.device),
            self.row_splits.diff(),
            output_size=self.values.shape[0],
        )

    def to_lists(self) -> list[list[int]]:
        """As nested lists."""
        borders = self.row_splits.tolist()
        values = self.values.tolist()
        return [values[a:b] for a, b in pairwise(borders)]
