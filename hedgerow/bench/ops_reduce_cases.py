"""Cases of the ops benchmark: sums of the rows of many tables."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.segment import fused_reduce_and_split
from .ops_duel import Duel, Maker, Sizes


def _slices(width: int) -> list[int]:
    """Narrow tables into ones, others into four, the rest on the last.

    >>> _slices(3), _slices(7)
    ([1, 1, 1], [1, 1, 1, 4])
    """
    if width <= 3:
        return [1] * width
    return [width // 4] * 3 + [width - 3 * (width // 4)]


def _chain(splits: list[Tensor], tables: list[Tensor], slices: list[list[int]]) -> list[Tensor]:
    """Table by table: the row of each vector, index_add, a cut, fresh tensors."""
    found: list[Tensor] = []
    for borders, vectors, widths in zip(splits, tables, slices, strict=True):
        rows = torch.repeat_interleave(borders.diff(), output_size=vectors.shape[0])
        sums = torch.zeros(borders.shape[0] - 1, vectors.shape[1])
        sums.index_add_(0, rows, vectors)
        found += [part.contiguous() for part in sums.split(widths, dim=1)]
    return found


def reduce_and_split(sizes: Sizes) -> Duel:
    """Tables of widths 1, 3, 5, ..., each with rows of every length below the batch, shuffled."""
    random = torch.Generator().manual_seed(5)
    splits, tables = [], []
    widths = [2 * number + 1 for number in range(sizes.tables)]
    for width in widths:
        lengths = torch.randperm(sizes.reduce_rows, generator=random)
        splits.append(torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))
        eighths = torch.randint(-32, 33, (int(splits[-1][-1]), width), generator=random)
        tables.append(eighths / 8)  # sums of them are exact in any order
    slices = [_slices(width) for width in widths]
    return Duel(
        ours=lambda many: fused_reduce_and_split(splits, tables, slices),
        peer=lambda: _chain(splits, tables, slices),
        work={"tables": sizes.tables, "batch": sizes.reduce_rows},
    )


CASES: dict[str, Maker] = {"reduce and split": reduce_and_split}
