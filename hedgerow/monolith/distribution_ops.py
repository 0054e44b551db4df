"""The original's `distribution_ops`, by its names and in its order of arguments.

`name` is accepted and has no effect. What each function does is told where it is made, in
`hedgerow.ops`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..core.shapes import Float, Int64
from ..ops import reduce, segment
from ..ops.segment import fused_value_rowids

__all__ = [
    "fused_reduce_and_split_gpu",
    "fused_reduce_sum_and_split",
    "fused_sorted_segment_sum",
    "fused_value_rowids",
    "normalize_merged_split",
    "reduce_mean",
    "reduce_sqrtn",
    "reduce_sum",
]


def reduce_mean(
    id_indices: Int64[Tensor, "n columns"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    name: str | None = None,
) -> Float[Tensor, "rows dim"]:
    """`hedgerow.ops.reduce.reduce_mean`."""
    return reduce.reduce_mean(id_indices, id_values, id_length)


def reduce_sum(
    id_indices: Int64[Tensor, "n columns"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    name: str | None = None,
) -> Float[Tensor, "rows dim"]:
    """`hedgerow.ops.reduce.reduce_sum`."""
    return reduce.reduce_sum(id_indices, id_values, id_length)


def reduce_sqrtn(
    id_indices: Int64[Tensor, "n columns"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    name: str | None = None,
) -> Float[Tensor, "rows dim"]:
    """`hedgerow.ops.reduce.reduce_sqrtn`: a norm of each column, whatever its name says."""
    return reduce.reduce_sqrtn(id_indices, id_values, id_length)


def fused_sorted_segment_sum(
    indices: Sequence[Int64[Tensor, "n"]],
    values: Sequence[Float[Tensor, "n ..."]],
    shapes: Sequence[Sequence[int] | Tensor],
) -> list[Tensor]:
    """`hedgerow.ops.segment.fused_sorted_segment_sum`."""
    return segment.fused_sorted_segment_sum(indices, values, shapes)


def fused_reduce_sum_and_split(
    id_indices: Int64[Tensor, "n"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    split_dims: Sequence[int],
    name: str | None = None,
) -> list[Tensor]:
    """`hedgerow.ops.reduce.fused_reduce_sum_and_split`."""
    return reduce.fused_reduce_sum_and_split(id_indices, id_values, id_length, split_dims)


def fused_reduce_and_split_gpu(
    splits: Sequence[Int64[Tensor, "rows+1"]],
    embeddings: Sequence[Float[Tensor, "n dim"]],
    slice_dims: Sequence[Sequence[int]],
    name: str | None = None,
) -> list[Tensor]:
    """`hedgerow.ops.segment.fused_reduce_and_split`, on any device."""
    return segment.fused_reduce_and_split(splits, embeddings, slice_dims)


def normalize_merged_split(row_split: Int64[Tensor, "n"], size: Tensor) -> Int64[Tensor, "rows+1"]:
    """`hedgerow.ops.segment.normalize_merged_split`."""
    return segment.normalize_merged_split(row_split, size)
