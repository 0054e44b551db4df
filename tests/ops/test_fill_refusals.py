"""Buffers, parts and offsets that cannot be filled are refused, before anything is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.monolith.offset_maps import (
    SharedBuffer,
    ValueOffset,
    _check_plain,
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    finalize_shared_tensor,
    unique_key_with_value_and_offset,
)

from .test_fill import DIMS, FIRST, SECOND, SIZE, WHERE, _flat


def _closed(other: Callable[[SharedBuffer], object]) -> None:
    buffer = SharedBuffer.zeros(SIZE)
    finalize_shared_tensor([buffer], torch.float32)
    assert buffer.closed
    with pytest.raises(ValueError, match="was finalized"):
        other(buffer)


def test_nothing_is_filled_or_finalized_after_the_end() -> None:
    _closed(lambda buffer: finalize_shared_tensor([buffer], torch.float32))
    _closed(lambda buffer: fill_with_offset_map(FIRST, torch.zeros(2), WHERE, buffer, DIMS))
    _closed(lambda buffer: buffer.tensor)


def test_a_finalized_tensor_is_not_written_any_more() -> None:
    buffer = fill_with_offset_map(FIRST, torch.ones(2), WHERE, SharedBuffer.zeros(SIZE), DIMS)
    tensor = finalize_shared_tensor([buffer], torch.float32)
    before = tensor.clone()
    with pytest.raises(ValueError, match="was finalized"):
        fill_with_offset_map(SECOND, torch.ones(5), WHERE, buffer, DIMS)
    assert torch.equal(tensor, before)


@pytest.mark.parametrize(
    ("handles", "dtype", "shape", "message"),
    [
        ([], torch.float32, None, "at least one"),
        ([torch.zeros(2)], torch.float32, None, "SharedBuffer"),
        ([SharedBuffer.zeros(2), SharedBuffer.zeros(2)], torch.float32, None, "different buffers"),
        ([SharedBuffer.zeros(2)], torch.float64, None, "holds torch.float32"),
        ([SharedBuffer.zeros(2)], torch.float32, [3], r"shape \[2\], not \[3\]"),
        ([SharedBuffer.zeros(2)], torch.float32, [None, 1], "shape"),
        ([SharedBuffer.zeros(2)], torch.float32, [], "shape"),
    ],
)
def test_what_cannot_be_finalized_stays_open(
    handles: list, dtype: torch.dtype, shape: list | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        finalize_shared_tensor(handles, dtype, shape)
    assert not any(handle.closed for handle in handles if isinstance(handle, SharedBuffer))


def test_filling_a_buffer_that_was_not_made_is_an_error() -> None:
    found = unique_key_with_value_and_offset(Ragged.from_lists([[1]]), [2], generate_buffer=False)
    with pytest.raises(ValueError, match="generate_buffer=True"):
        fill_with_offset_map(
            Ragged.from_lists([[0]]), torch.zeros(2), found.value_offset, found.value_buffer, [2]
        )


def _fill(pos: Ragged, value: Tensor, where: ValueOffset = WHERE, dims: list | None = None) -> None:
    buffer = SharedBuffer(torch.full((SIZE,), 5.0))
    try:
        fill_with_offset_map(pos, value, where, buffer, DIMS if dims is None else dims)
    finally:
        assert torch.equal(buffer.tensor, torch.full((SIZE,), 5.0)), "a refused fill wrote"


@pytest.mark.parametrize("n", [0, 1, 3, 100])
def test_d4_values_too_few_or_too_many_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"value has {n} values; pos and dims say 2"):
        _fill(FIRST, torch.zeros(n))


@pytest.mark.parametrize("key", [-1, 3, 4, 2**62])
def test_d4_a_key_is_compared_with_the_number_of_keys(key: int) -> None:
    """There are 4 offsets of 3 keys: Monolith takes key 3."""
    with pytest.raises(ValueError, match=rf"pos.values holds {key} at 1; .*\[0, 3\)"):
        _fill(Ragged.from_lists([[0, key], []]), torch.zeros(4))
    with pytest.raises(ValueError, match=rf"pos.values holds {key}"):
        fill_with_offset_map_gradient(
            Ragged.from_lists([[key], []]), torch.zeros(SIZE), WHERE, DIMS
        )


def _where(offsets: list[int], inner: list[int]) -> ValueOffset:
    borders = torch.tensor(inner, dtype=torch.int64)
    return ValueOffset(torch.tensor(offsets), torch.tensor([0, 2, 3]), borders)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (_where([0, 4, 8, 6], [0, 2, 3, 4]), "outside value_buffer"),
        (_where([0, 4, -1, 6], [0, 2, 3, 4]), "outside value_buffer"),
        (_where([0, 4, 2, 6], [0, 3, 2, 4]), "no borders at key 1"),
        (_where([0, 4, 2, 6], [0, 2, 9, 9]), "no borders at key 1"),
        (_where([0, 4, 2, 6], []), "is empty"),
    ],
)
def test_offsets_outside_the_buffer_are_refused(where: ValueOffset, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _fill(FIRST, torch.zeros(2), where)


@pytest.mark.parametrize(
    ("pos", "value", "dims", "message"),
    [
        (Ragged.from_lists([[1]]), torch.zeros(2), DIMS, "2 widths for 1 rows"),
        (FIRST, torch.zeros(2), [2], "1 widths for 2 rows"),
        (FIRST, torch.zeros(2, dtype=torch.float64), DIMS, "float64"),
        (FIRST, torch.zeros(1, 2), DIMS, "shape"),
        (FIRST, [1.0, 2.0], DIMS, "value is a list"),
        (torch.tensor([1]), torch.zeros(2), DIMS, "pos must be a Ragged"),
        (Ragged.trusted(torch.tensor([1]), torch.tensor([0, 2, 1])), torch.zeros(2), DIMS, "falls"),
        (Ragged(torch.tensor([1.0]), torch.tensor([0, 1, 1])), torch.zeros(2), DIMS, "float32"),
    ],
)
def test_bad_parts_are_refused(pos: Ragged, value: Tensor, dims: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _fill(pos, value, dims=dims)


def test_bad_buffers_are_refused() -> None:
    with pytest.raises(ValueError, match="leaf"):
        SharedBuffer(torch.zeros(2, requires_grad=True))
    with pytest.raises(ValueError, match="contiguous"):
        SharedBuffer(torch.zeros(4)[::2])
    with pytest.raises(ValueError, match="int64"):
        SharedBuffer(torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("grad", "message"),
    [
        (torch.zeros(3), "outside grad"),
        (torch.zeros(SIZE, dtype=torch.int64), "int64"),
        (torch.zeros(SIZE, 1), "shape"),
        ([0.0] * SIZE, "grad is a list"),
    ],
)
def test_bad_gradients_are_refused(grad: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill_with_offset_map_gradient(FIRST, grad, WHERE, DIMS)


@pytest.mark.parametrize(
    ("pos", "where", "floats", "message"),
    [
        (Ragged.from_lists([[1], [3]]), WHERE, SIZE, "pos.values holds 3"),
        (Ragged.from_lists([[-1], []]), WHERE, SIZE, "pos.values holds -1"),
        (SECOND, _where([0, 4, 2, 6], [0, 3, 2, 4]), SIZE, "falls from 3 to 2"),
        (SECOND, WHERE, SIZE - 1, "values must be in"),
        (SECOND, _where([0, -4, 2, 6], [0, 2, 3, 4]), SIZE, "holds -4"),
    ],
)
def test_torch_finds_the_same_faults_where_there_is_no_core(
    pos: Ragged, where: ValueOffset, floats: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _check_plain(_flat(pos, where), "value_buffer", floats, DIMS)
    _check_plain(_flat(SECOND), "value_buffer", SIZE, DIMS)
