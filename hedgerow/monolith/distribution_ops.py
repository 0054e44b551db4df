"""Monolith's `distribution_ops`, with its names and argument order.

`name` and `parallel_flag` are accepted and ignored. Each function is documented where it is
defined, in `hedgerow.ops`, `hedgerow.monolith.offset_maps` and `hedgerow.monolith.gather_by_ids`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.ids import Ragged
from ..core.shapes import Float, Int64
from ..ops import arguments, fused_gather, reduce, reorder, segment, split
from ..ops.reorder import Reordered
from ..ops.segment import fused_value_rowids
from . import gather_by_ids, offset_maps
from .layouts.monolith_call import fused_embedding_to_layout, fused_embedding_to_layout_grad
from .offset_maps import SharedBuffer, UniqueKeys, ValueOffset

__all__ = [
    "fill_with_offset_map",
    "fill_with_offset_map_gradient",
    "finalize_shared_tensor",
    "fused_embedding_to_layout",
    "fused_embedding_to_layout_grad",
    "fused_gather_embeddings_by_input",
    "fused_gather_embeddings_by_input_gradient",
    "fused_reduce_and_split_gpu",
    "fused_reduce_sum_and_split",
    "fused_reorder_by_indices",
    "fused_sorted_segment_sum",
    "fused_value_rowids",
    "gather_embeddings_by_ids_gradient_back_prop",
    "gather_embeddings_by_input",
    "map_id_to_embedding",
    "map_id_to_embedding_gradient_back_prop",
    "normalize_merged_split",
    "ragged_split_by_indices",
    "reduce_mean",
    "reduce_sqrtn",
    "reduce_sum",
    "reorder_by_indices",
    "split_by_indices",
    "unique_key_with_value_and_offset",
]


def split_by_indices(indices: Int64[Tensor, "n"], tensor: Tensor, num_splits: int) -> list[Tensor]:
    """Calls `hedgerow.ops.split.split_by_indices`."""
    return split.split_by_indices(indices, tensor, num_splits)


def ragged_split_by_indices(
    indices: Int64[Tensor, "n"], num: Ragged, num_splits: int
) -> tuple[list[Ragged], list[Ragged]]:
    """Calls `hedgerow.ops.split.ragged_split_by_indices`."""
    return split.ragged_split_by_indices(indices, num, num_splits)


def unique_key_with_value_and_offset(
    key: Ragged, dims: Sequence[int], generate_buffer: bool = True
) -> UniqueKeys:
    """Calls `hedgerow.monolith.offset_maps.unique_key_with_value_and_offset`."""
    return offset_maps.unique_key_with_value_and_offset(key, dims, generate_buffer)


def fill_with_offset_map(
    pos: Ragged,
    value: Float[Tensor, "floats"],
    value_offset_map: ValueOffset,
    value_buffer: SharedBuffer | None,
    dims: Sequence[int],
) -> SharedBuffer:
    """Calls `hedgerow.monolith.offset_maps.fill_with_offset_map`."""
    return offset_maps.fill_with_offset_map(pos, value, value_offset_map, value_buffer, dims)


def fill_with_offset_map_gradient(
    pos: Ragged,
    grad: Float[Tensor, "buffer"],
    value_offset_map: ValueOffset,
    dims: Sequence[int],
) -> Float[Tensor, "floats"]:
    """Calls `hedgerow.monolith.offset_maps.fill_with_offset_map_gradient`."""
    return offset_maps.fill_with_offset_map_gradient(pos, grad, value_offset_map, dims)


def finalize_shared_tensor(
    shared_tensor_handles: Sequence[SharedBuffer],
    dtype: torch.dtype,
    shape: Sequence[int | None] | None,
) -> Tensor:
    """Calls `hedgerow.monolith.offset_maps.finalize_shared_tensor`."""
    return offset_maps.finalize_shared_tensor(shared_tensor_handles, dtype, shape)


def reorder_by_indices(
    input: Tensor, shard_ids: Tensor, num_of_shards: int
) -> tuple[Tensor, Tensor]:
    """Calls `hedgerow.ops.reorder.reorder_by_indices`."""
    return reorder.reorder_by_indices(input, shard_ids, num_of_shards)


def fused_reorder_by_indices(
    inputs: Sequence[Int64[Tensor, "n"]], num_of_shards: int, dim_sizes: Sequence[int]
) -> Reordered:
    """Calls `hedgerow.ops.reorder.fused_reorder_by_indices`.

    Shard 0 owns ids like all others (D2).
    """
    return reorder.fused_reorder_by_indices(inputs, num_of_shards, dim_sizes)


def map_id_to_embedding(
    ids: Sequence[Int64[Tensor, "k"]],
    embeddings: Sequence[Float[Tensor, "k dim"]],
    input: Int64[Tensor, "..."],
    use_multi_threads: bool = True,
) -> Float[Tensor, "... dim"]:
    """Calls `hedgerow.monolith.gather_by_ids.map_id_to_embedding`."""
    return gather_by_ids.map_id_to_embedding(ids, embeddings, input, use_multi_threads)


def map_id_to_embedding_gradient_back_prop(
    ids: Sequence[Int64[Tensor, "k"]],
    input: Int64[Tensor, "..."],
    grads: Float[Tensor, "... dim"],
) -> list[Float[Tensor, "k dim"]]:
    """Calls `hedgerow.monolith.gather_by_ids.map_id_to_embedding_gradient_back_prop`."""
    return gather_by_ids.map_id_to_embedding_gradient_back_prop(ids, input, grads)


def gather_embeddings_by_input(
    ids: Int64[Tensor, "k"],
    embeddings: Float[Tensor, "k dim"],
    input: Int64[Tensor, "..."],
    use_multi_threads: bool = False,
) -> tuple[Float[Tensor, "... dim"], Int64[Tensor, "..."]]:
    """Calls `hedgerow.monolith.gather_by_ids.gather_embeddings_by_input`."""
    return gather_by_ids.gather_embeddings_by_input(ids, embeddings, input, use_multi_threads)


def gather_embeddings_by_ids_gradient_back_prop(
    ids: Int64[Tensor, "k"],
    grads: Float[Tensor, "... dim"],
    index_mapping: Int64[Tensor, "..."],
) -> Float[Tensor, "k dim"]:
    """Calls `hedgerow.monolith.gather_by_ids.gather_embeddings_by_ids_gradient_back_prop`."""
    return gather_by_ids.gather_embeddings_by_ids_gradient_back_prop(ids, grads, index_mapping)


def fused_gather_embeddings_by_input(
    fused_embeddings: Float[Tensor, "floats"],
    fused_embedding_offsets: Sequence[Tensor],
    embedding_dims: Sequence[int],
) -> list[Float[Tensor, "n dim"]]:
    """Calls `hedgerow.ops.fused_gather.fused_gather_embeddings_by_input`."""
    return fused_gather.fused_gather_embeddings_by_input(
        fused_embeddings, fused_embedding_offsets, embedding_dims
    )


def fused_gather_embeddings_by_input_gradient(
    fused_embeddings: Float[Tensor, "floats"],
    grads: Sequence[Float[Tensor, "n dim"]],
    embedding_offsets: Sequence[Tensor],
    embedding_dims: Sequence[int],
    scale: float | Tensor = 1,
) -> Float[Tensor, "floats"]:
    """Calls `hedgerow.ops.fused_gather.fused_gather_embeddings_by_input_gradient`.

    Only the length of `fused_embeddings` is used.
    """
    flat = arguments.typed("fused_embeddings", fused_embeddings, arguments.FLOATS, (None,))
    return fused_gather.fused_gather_embeddings_by_input_gradient(
        flat.shape[0], grads, embedding_offsets, embedding_dims, scale
    )


def reduce_mean(
    id_indices: Int64[Tensor, "n columns"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    name: str | None = None,
) -> Float[Tensor, "rows dim"]:
    """Calls `hedgerow.ops.reduce.reduce_mean`."""
    return reduce.reduce_mean(id_indices, id_values, id_length)


def reduce_sum(
    id_indices: Int64[Tensor, "n columns"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    name: str | None = None,
) -> Float[Tensor, "rows dim"]:
    """Calls `hedgerow.ops.reduce.reduce_sum`."""
    return reduce.reduce_sum(id_indices, id_values, id_length)


def reduce_sqrtn(
    id_indices: Int64[Tensor, "n columns"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    name: str | None = None,
) -> Float[Tensor, "rows dim"]:
    """Calls `hedgerow.ops.reduce.reduce_sqrtn`: a norm per column, despite its name."""
    return reduce.reduce_sqrtn(id_indices, id_values, id_length)


def fused_sorted_segment_sum(
    indices: Sequence[Int64[Tensor, "n"]],
    values: Sequence[Float[Tensor, "n ..."]],
    shapes: Sequence[Sequence[int] | Tensor],
) -> list[Tensor]:
    """Calls `hedgerow.ops.segment.fused_sorted_segment_sum`."""
    return segment.fused_sorted_segment_sum(indices, values, shapes)


def fused_reduce_sum_and_split(
    id_indices: Int64[Tensor, "n"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    split_dims: Sequence[int],
    name: str | None = None,
) -> list[Tensor]:
    """Calls `hedgerow.ops.reduce.fused_reduce_sum_and_split`."""
    return reduce.fused_reduce_sum_and_split(id_indices, id_values, id_length, split_dims)


def fused_reduce_and_split_gpu(
    splits: Sequence[Int64[Tensor, "rows+1"]],
    embeddings: Sequence[Float[Tensor, "n dim"]],
    slice_dims: Sequence[Sequence[int]],
    name: str | None = None,
) -> list[Tensor]:
    """Calls `hedgerow.ops.segment.fused_reduce_and_split`, on any device."""
    return segment.fused_reduce_and_split(splits, embeddings, slice_dims)


def normalize_merged_split(row_split: Int64[Tensor, "n"], size: Tensor) -> Int64[Tensor, "rows+1"]:
    """Calls `hedgerow.ops.segment.normalize_merged_split`."""
    return segment.normalize_merged_split(row_split, size)
