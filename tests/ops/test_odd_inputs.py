"""Inputs that are right but odd (strides, negated views, half types), second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.monolith.gather_by_ids import (
    find_rows,
    gather_embeddings_by_ids_gradient_back_prop,
    gather_embeddings_by_input,
    map_id_to_embedding,
    shard_of,
)
from hedgerow.monolith.offset_maps import (
    SharedBuffer,
    ValueOffset,
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    unique_key_with_value_and_offset,
)
from hedgerow.ops.fused_gather import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
)
from hedgerow.ops.reorder import fused_reorder_by_indices, reorder_by_indices

SHARD = torch.tensor([0], dtype=torch.int32)


@pytest.mark.parametrize(
    "row", [torch.arange(4096)[::4096], torch.randn(700, 50)[::700], torch.randn(9, 3).half()[::9]]
)
def test_one_row_of_any_stride_is_copied_alone(row: Tensor) -> None:
    for _ in range(200):  # each would write beyond its output
        output, sizes = reorder_by_indices(row, SHARD, 1)
        assert torch.equal(output, row)
        assert sizes.tolist() == [1]


def test_a_strided_or_expanded_mapping_is_read_as_it_is() -> None:
    ids = torch.arange(4)
    strided = torch.tensor([0, 3, 1, 3, 2, 3, 3, 3])[::2]
    found = gather_embeddings_by_ids_gradient_back_prop(ids, torch.ones(4, 1), strided)
    assert found.flatten().tolist() == [1, 1, 1, 1]
    expanded = torch.tensor([1]).expand(3)
    found = gather_embeddings_by_ids_gradient_back_prop(ids, torch.ones(3, 1), expanded)
    assert found.flatten().tolist() == [0, 3, 0, 0]


def test_strided_ids_have_shards() -> None:
    assert shard_of(torch.arange(10)[::2], 3).tolist() == [0, 2, 1, 0, 2]


def test_results_hold_no_more_memory_than_their_values() -> None:
    ids = torch.zeros(10_000, dtype=torch.int64)
    one, _ = reorder_by_indices(ids, torch.zeros(10_000, dtype=torch.int32), 2)
    fused = fused_reorder_by_indices([ids], 2, [4]).output
    unique = unique_key_with_value_and_offset(Ragged(ids, torch.tensor([0, 10_000])), [1])
    for kept in (one, fused, unique.unique_key.values):
        assert kept.untyped_storage().nbytes() == 8
    assert unique.value_offset.inner_row_splits.untyped_storage().nbytes() == 16


def test_a_negated_view_is_taken_by_its_values() -> None:
    value = torch.tensor([1 + 2j]).conj().imag
    where = ValueOffset(torch.tensor([0]), torch.tensor([0, 1]), torch.tensor([0, 1]))
    buffer = fill_with_offset_map(
        Ragged.from_lists([[0]]), value, where, SharedBuffer.zeros(2), [1]
    )
    assert buffer.tensor.tolist() == [-2, 0]
    with pytest.raises(ValueError, match="negated view"):
        SharedBuffer(torch._neg_view(torch.zeros(2)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_added_in_float32(dtype: torch.dtype) -> None:
    n, wanted = 3000, torch.tensor(3000.0).to(dtype).item()
    ones = torch.ones(n, 1, dtype=dtype)
    rows = torch.zeros(n, dtype=torch.int64)
    summed = gather_embeddings_by_ids_gradient_back_prop(torch.tensor([5]), ones, rows)
    assert summed.item() == wanted
    windows = fused_gather_embeddings_by_input_gradient(1, [ones], [rows], [1])
    assert windows.item() == wanted
    flat = torch.zeros(1, dtype=dtype, requires_grad=True)
    fused_gather_embeddings_by_input(flat, [rows], [1])[0].sum().backward()
    assert flat.grad is not None
    assert flat.grad.item() == wanted
    where = ValueOffset(torch.arange(n), torch.tensor([0, 1]), torch.tensor([0, n]))
    pos = Ragged.from_lists([[0]])
    assert fill_with_offset_map_gradient(pos, ones.flatten(), where, [1]).item() == wanted


def _second_gradient_is_right(run: Callable[[Tensor], Tensor], values: Tensor) -> None:
    assert torch.autograd.gradgradcheck(lambda x: run(x) ** 3, (values,))


def test_second_derivatives_of_vectors_by_id_and_of_windows() -> None:
    ids, queries = torch.tensor([1, 2, 9]), torch.tensor([[1, 9], [1, 1]])
    table = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    _second_gradient_is_right(lambda x: map_id_to_embedding([ids], [x], queries), table)
    _second_gradient_is_right(lambda x: gather_embeddings_by_input(ids, x, queries)[0], table)
    flat = torch.randn(5, dtype=torch.float64, requires_grad=True)
    offsets = [torch.tensor([0, 3]), torch.tensor([1, 1])]

    def windows(x: Tensor) -> Tensor:
        found = fused_gather_embeddings_by_input(x, offsets, [2, 3])
        return torch.cat([one.flatten() for one in found])

    _second_gradient_is_right(windows, flat)


IDS, TABLE = torch.tensor([1, 2]), torch.ones(2, 3)
WRONG: dict[str, Callable[[], Any]] = {
    "a window longer than all": lambda: fused_gather_embeddings_by_input(
        torch.zeros(6), [torch.tensor([0])], [2**40]
    ),
    "a scale that is none": lambda: fused_gather_embeddings_by_input_gradient(
        2,
        [torch.ones(1, 1)],
        [torch.tensor([0])],
        [1],
        None,  # pyright: ignore[reportArgumentType]
    ),
    "a scale that is a list": lambda: fused_gather_embeddings_by_input_gradient(
        2,
        [torch.ones(1, 1)],
        [torch.tensor([0])],
        [1],
        [2.0],  # pyright: ignore[reportArgumentType]
    ),
    "a tensor for a list": lambda: fused_reorder_by_indices(IDS, 2, [1]),  # pyright: ignore[reportArgumentType]
    "a text for a list": lambda: find_rows("ab", IDS),  # pyright: ignore[reportArgumentType]
    "an array for a tensor": lambda: find_rows([np.array([1])], IDS),  # pyright: ignore[reportArgumentType]
    "a table elsewhere": lambda: map_id_to_embedding([IDS], [TABLE.to("meta")], IDS),
    "queries elsewhere": lambda: gather_embeddings_by_input(IDS, TABLE, IDS.to("meta")),
    "offsets elsewhere": lambda: fused_gather_embeddings_by_input(
        torch.zeros(6), [torch.tensor([0], device="meta")], [2]
    ),
    "a buffer that is a view of a leaf": lambda: SharedBuffer(
        torch.zeros(6, requires_grad=True)[:4]
    ),
    "no ids": lambda: shard_of([1, 2], 3),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match=r"; |cannot be|within|is on"):
        WRONG[name]()
