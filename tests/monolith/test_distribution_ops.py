"""The door of the ops: Monolith's names and order of arguments."""

from __future__ import annotations

import inspect

import pytest
import torch

from hedgerow.core.ids import Ragged
from hedgerow.monolith import distribution_ops as ops
from hedgerow.ops.segment import fused_reduce_and_split

SIGNATURES = {
    "split_by_indices": "(indices, tensor, num_splits)",
    "ragged_split_by_indices": "(indices, num, num_splits)",
    "unique_key_with_value_and_offset": "(key, dims, generate_buffer=True)",
    "fill_with_offset_map": "(pos, value, value_offset_map, value_buffer, dims)",
    "fill_with_offset_map_gradient": "(pos, grad, value_offset_map, dims)",
    "finalize_shared_tensor": "(shared_tensor_handles, dtype, shape)",
    "reorder_by_indices": "(input, shard_ids, num_of_shards)",
    "fused_reorder_by_indices": "(inputs, num_of_shards, dim_sizes)",
    "map_id_to_embedding": "(ids, embeddings, input, use_multi_threads=True)",
    "map_id_to_embedding_gradient_back_prop": "(ids, input, grads)",
    "gather_embeddings_by_ids_gradient_back_prop": "(ids, grads, index_mapping)",
    "gather_embeddings_by_input": "(ids, embeddings, input, use_multi_threads=False)",
    "fused_gather_embeddings_by_input": (
        "(fused_embeddings, fused_embedding_offsets, embedding_dims)"
    ),
    "fused_gather_embeddings_by_input_gradient": (
        "(fused_embeddings, grads, embedding_offsets, embedding_dims, scale=1)"
    ),
    "fused_embedding_to_layout": (
        "(embeddings_list, fid_list_row_split, fid_offset, feature_offset, nfl_offset, batch_size, "
        "variant_type, feature_cfgs, ps_num, fid_list_emb_row_lenth=None, nfl_size=None, "
        "feature_size=None, fid_size=None, emb_size=None, parallel_flag=0, version=3)"
    ),
    "fused_embedding_to_layout_grad": (
        "(nfl_offset, feature_offset, fid_offset, batch_size, embeddings_list, fid_list_row_split, "
        "layout_tensors_grad, variant_type, feature_cfgs, ps_num, fid_list_emb_row_lenth=None, "
        "layout_tensors_grad_scale=None, parallel_flag=0, version=3)"
    ),
    "reduce_mean": "(id_indices, id_values, id_length, name=None)",
    "reduce_sum": "(id_indices, id_values, id_length, name=None)",
    "reduce_sqrtn": "(id_indices, id_values, id_length, name=None)",
    "fused_sorted_segment_sum": "(indices, values, shapes)",
    "fused_reduce_sum_and_split": "(id_indices, id_values, id_length, split_dims, name=None)",
    "fused_reduce_and_split_gpu": "(splits, embeddings, slice_dims, name=None)",
    "normalize_merged_split": "(row_split, size)",
}
MORE = {"fused_value_rowids"}  # with no order to keep


def _bare(function: object) -> str:
    """A signature without its annotations."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare))


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_arguments_have_monolith_names_and_order(name: str) -> None:
    assert _bare(getattr(ops, name)) == SIGNATURES[name]


def test_the_door_offers_these_and_no_other() -> None:
    assert set(ops.__all__) == {*SIGNATURES, *MORE}
    assert list(ops.__all__) == sorted(ops.__all__)


def test_reductions_by_row_number() -> None:
    rows, values, count = torch.tensor([[0], [0]]), torch.tensor([[3.0], [4.0]]), torch.tensor([2])
    assert ops.reduce_sum(rows, values, count, "sum").tolist() == [[7.0], [0.0]]
    assert ops.reduce_mean(rows, values, count, "mean").tolist() == [[3.5], [0.0]]
    assert ops.reduce_sqrtn(rows, values, count, name="norm").tolist() == [[5.0], [0.0]]
    (part,) = ops.fused_reduce_sum_and_split(rows[:, 0], values, 2, [1], name="parts")
    assert part.tolist() == [[7.0], [0.0]]


def test_sums_of_rows() -> None:
    values, splits = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 2, 2])
    (found,) = ops.fused_sorted_segment_sum([torch.tensor([1, 1])], [values], [[2, 2]])
    assert found.tolist() == [[0.0, 0.0], [4.0, 6.0]]
    ours = ops.fused_reduce_and_split_gpu([splits], [values], [[1, 1]], name="parts")
    wanted = fused_reduce_and_split([splits], [values], [[1, 1]])
    assert [one.tolist() for one in ours] == [one.tolist() for one in wanted]


def test_borders_and_row_numbers() -> None:
    merged = ops.normalize_merged_split(torch.tensor([0, 2, 0, 1]), torch.tensor([2, 2]))
    assert merged.tolist() == [0, 2, 3]
    assert ops.fused_value_rowids(Ragged.from_lists([[5], [], [6]])).tolist() == [0, 2]


def test_the_path_of_the_parameter_server() -> None:
    key, dims = Ragged.from_lists([[0, 1, 0], [0]]), [2, 3]
    found = ops.unique_key_with_value_and_offset(key, dims)
    shards = torch.tensor([0, 1, 0])
    _, positions = ops.ragged_split_by_indices(shards, found.unique_key, 2)
    parts = [torch.arange(5.0), torch.tensor([8.0, 9.0])]
    handles = [
        ops.fill_with_offset_map(pos, value, found.value_offset, found.value_buffer, dims)
        for pos, value in zip(positions, parts, strict=True)
    ]
    filled = ops.finalize_shared_tensor(handles, torch.float32, [9])
    assert filled.tolist() == [0, 1, 8, 9, 0, 1, 2, 3, 4]
    grad = ops.fill_with_offset_map_gradient(
        positions[1], torch.arange(9.0), found.value_offset, dims
    )
    assert grad.tolist() == [2, 3]


def test_the_path_of_the_all_to_all() -> None:
    inputs = [torch.tensor(ids) for ids in ([0, 1, 0], [3, 2, 3], [5, 6, 7])]
    output, shard_sizes, _, sizes, offsets = ops.fused_reorder_by_indices(inputs, 2, [1, 2, 3])
    assert output.tolist() == [0, 2, 6, 1, 3, 5, 7]
    assert shard_sizes.tolist() == [3, 4]
    fused, cut = torch.arange(15.0), offsets.split(sizes.tolist())
    first, *_ = ops.fused_gather_embeddings_by_input(fused, cut, [1, 2, 3])
    assert first.tolist() == [[0], [6], [0]]
    grad = ops.fused_gather_embeddings_by_input_gradient(
        fused, [torch.ones(3, 1)], cut[:1], [1], 0.5
    )
    assert grad.tolist() == [1, 0, 0, 0, 0, 0, 0.5, *[0] * 8]
    with pytest.raises(ValueError, match="fused_embeddings is a int"):
        ops.fused_gather_embeddings_by_input_gradient(15, [], [], [])  # type: ignore[arg-type]


def test_ids_by_shard_and_vectors_by_id() -> None:
    ids, vectors = torch.tensor([4, 5, 6]), torch.tensor([[4.0], [5.0], [6.0]])
    lists = ops.split_by_indices(ids % 2, ids, 2)
    rows = ops.split_by_indices(ids % 2, vectors, 2)
    assert ops.map_id_to_embedding(lists, rows, ids).tolist() == vectors.tolist()
    grads = ops.map_id_to_embedding_gradient_back_prop(lists, ids, vectors)
    assert [grad.tolist() for grad in grads] == [[[4], [6]], [[5]]]
    found, mapping = ops.gather_embeddings_by_input(ids, vectors, torch.tensor([6, 4]))
    assert (found.tolist(), mapping.tolist()) == ([[6], [4]], [2, 0])
    output, sizes = ops.reorder_by_indices(ids, (ids % 2).int(), 2)
    assert (output.tolist(), sizes.tolist()) == ([6, 4, 5], [2, 1])
