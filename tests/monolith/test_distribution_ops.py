"""The door of the ops: the original's names and order of arguments."""

from __future__ import annotations

import inspect

import pytest
import torch

from hedgerow.monolith import distribution_ops as ops
from hedgerow.ops.ragged import Ragged
from hedgerow.ops.segment import fused_reduce_and_split

SIGNATURES = {
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
def test_arguments_have_the_original_s_names_and_order(name: str) -> None:
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
    assert ops.fused_value_rowids(Ragged.of([[5], [], [6]])).tolist() == [0, 2]
