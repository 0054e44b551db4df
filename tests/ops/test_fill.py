"""Parts fill one buffer in place; the gradient of every value is the sum over its places."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow import native
from hedgerow.core.ids import Ragged
from hedgerow.monolith.offset_maps import (
    SharedBuffer,
    ValueOffset,
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    fill_with_offset_map_gradient_plain,
    fill_with_offset_map_plain,
    finalize_shared_tensor,
    unique_key_with_value_and_offset,
)
from tests.support import threads

# Key 0 at 0 and 4, key 1 at 2, of width 2; key 2 at 6, of width 3.
WHERE = ValueOffset(torch.tensor([0, 4, 2, 6]), torch.tensor([0, 2, 3]), torch.tensor([0, 2, 3, 4]))
DIMS, SIZE = [2, 3], 9
FIRST, SECOND = Ragged.from_lists([[1], []]), Ragged.from_lists([[0], [2]])


def _values(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def _flat(pos: Ragged, where: ValueOffset = WHERE) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return pos.values, pos.row_splits, where.values, where.inner_row_splits


def test_parts_fill_one_buffer_and_each_value_gets_its_own_gradient() -> None:
    one, other = _values(1, 2), _values(3, 4, 5, 6, 7)
    buffer = SharedBuffer.zeros(SIZE)
    handles = [
        fill_with_offset_map(FIRST, one, WHERE, buffer, DIMS),
        fill_with_offset_map(SECOND, other, WHERE, buffer, DIMS),
    ]
    assert all(handle is buffer for handle in handles)
    tensor = finalize_shared_tensor(handles, torch.float32, [SIZE])
    assert tensor.tolist() == [3, 4, 1, 2, 3, 4, 5, 6, 7]
    tensor.backward(torch.arange(9.0))
    assert one.grad is not None
    assert other.grad is not None
    assert one.grad.tolist() == [2, 3]
    assert other.grad.tolist() == [0 + 4, 1 + 5, 6, 7, 8]


def test_d5_every_handle_gets_its_gradient() -> None:
    """Monolith hands back one gradient, whatever the number of handles."""
    key = Ragged.from_lists([[k % 5 for k in range(12)]])
    found = unique_key_with_value_and_offset(key, [1])
    values = [_values(float(k)) for k in range(5)]
    handles = [
        fill_with_offset_map(
            Ragged.from_lists([[k]]), value, found.value_offset, found.value_buffer, [1]
        )
        for k, value in enumerate(values)
    ]
    finalize_shared_tensor(handles, torch.float32).sum().backward()
    assert [value.grad.item() for value in values if value.grad is not None] == [3, 3, 2, 2, 2]


def test_places_that_no_part_covers_keep_their_value() -> None:
    buffer = SharedBuffer(torch.full((SIZE,), 5.0))
    fill_with_offset_map(FIRST, torch.tensor([1.0, 2.0]), WHERE, buffer, DIMS)
    assert buffer.tensor.tolist() == [5, 5, 1, 2, 5, 5, 5, 5, 5]


def test_the_gradient_of_what_was_there_before_misses_the_places_written() -> None:
    base = torch.ones(SIZE, requires_grad=True)
    buffer = SharedBuffer(base * 2)
    one, other = _values(1, 2), _values(3, 4)
    fill_with_offset_map(FIRST, one, WHERE, buffer, DIMS)
    fill_with_offset_map(Ragged.from_lists([[0], []]), other, WHERE, buffer, DIMS)
    grad = torch.arange(1.0, 10.0)
    grads = torch.autograd.grad(
        finalize_shared_tensor([buffer, buffer], torch.float32), [base, one, other], grad
    )
    assert [g.tolist() for g in grads] == [[0, 0, 0, 0, 0, 0, 14, 16, 18], [3, 4], [6, 8]]
    assert grad.tolist() == list(range(1, 10))


def test_a_part_written_over_gets_no_gradient() -> None:
    one, other = _values(1, 2), _values(3, 4)
    buffer = SharedBuffer.zeros(SIZE)
    fill_with_offset_map(FIRST, one, WHERE, buffer, DIMS)
    fill_with_offset_map(FIRST, other, WHERE, buffer, DIMS)
    tensor = finalize_shared_tensor([buffer], torch.float32)
    assert tensor[2:4].tolist() == [3, 4]
    tensor.sum().backward()
    assert one.grad is not None
    assert other.grad is not None
    assert (one.grad.tolist(), other.grad.tolist()) == ([0, 0], [1, 1])


def test_a_part_written_over_by_another_map_gets_no_gradient() -> None:
    again = ValueOffset(WHERE.values.clone(), WHERE.outer_row_splits, WHERE.inner_row_splits)
    values = [_values(1, 2), _values(3, 4), _values(5, 6)]
    buffer = SharedBuffer.zeros(SIZE)
    for value, where in zip(values, (WHERE, again, WHERE), strict=True):
        fill_with_offset_map(FIRST, value, where, buffer, DIMS)
    finalize_shared_tensor([buffer], torch.float32).sum().backward()
    assert [v.grad.tolist() for v in values if v.grad is not None] == [[0, 0], [0, 0], [1, 1]]


def test_parts_of_other_keys_hand_the_gradient_on_without_a_copy() -> None:
    one, other = _values(1, 2), _values(3, 4, 5, 6, 7)
    buffer = SharedBuffer.zeros(SIZE)
    fill_with_offset_map(FIRST, one, WHERE, buffer, DIMS)
    early = buffer.tensor.grad_fn
    fill_with_offset_map(SECOND, other, WHERE, buffer, DIMS)
    seen = []
    assert early is not None
    early.register_prehook(lambda grads: seen.append(grads[0].data_ptr()))
    grad = torch.arange(9.0)
    finalize_shared_tensor([buffer], torch.float32).backward(grad)
    assert seen == [grad.data_ptr()]


def test_what_is_read_between_two_parts_has_its_gradient() -> None:
    one, other = _values(1, 2), _values(3, 4)
    buffer = SharedBuffer.zeros(SIZE)
    fill_with_offset_map(FIRST, one, WHERE, buffer, DIMS)
    early = (buffer.tensor * 10).sum()
    fill_with_offset_map(Ragged.from_lists([[0], []]), other, WHERE, buffer, DIMS)
    (finalize_shared_tensor([buffer], torch.float32).sum() + early).backward()
    assert one.grad is not None
    assert other.grad is not None
    assert (one.grad.tolist(), other.grad.tolist()) == ([11, 11], [2, 2])


def test_of_several_entries_of_one_key_the_last_stays_whatever_the_threads() -> None:
    n = 30_000
    where = ValueOffset(torch.tensor([0]), torch.tensor([0, 1]), torch.tensor([0, 1]))
    pos = Ragged(torch.zeros(n, dtype=torch.int64), torch.tensor([0, n]))
    for count in (1, 2, 4):
        with threads(count):
            buffer = SharedBuffer.zeros(1)
            fill_with_offset_map(pos, torch.arange(float(n)), where, buffer, [1])
            assert buffer.tensor.tolist() == [n - 1]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 6), max_size=9), st.integers(0, 5)), max_size=5),
    st.integers(1, 4),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_fills_are_those_of_a_plain_walk(
    given: list[tuple[list[int], int]], parts: int, dtype: torch.dtype
) -> None:
    dims = [dim for _, dim in given]
    found = unique_key_with_value_and_offset(Ragged.from_lists([row for row, _ in given]), dims)
    places, borders = found.value_offset.to_lists(), found.unique_key.row_splits.tolist()
    size = found.value_buffer.tensor.shape[0] if found.value_buffer else 0
    buffer, wanted, plain = (
        SharedBuffer.zeros(size, dtype),
        [0.0] * size,
        torch.zeros(size).to(dtype),
    )
    grad = torch.randint(-8, 8, (size,)).to(dtype)
    number = 0.0
    for part in range(parts):
        pos = [
            [key for key in range(borders[r], borders[r + 1]) if key % parts == part][::-1]
            for r in range(len(dims))
        ]
        values, sums = [], []
        for r, row in enumerate(pos):
            for key in row:
                mine = [number := number + 1 for _ in range(dims[r])]
                values += mine
                offsets = places[r][key - borders[r]]
                for o in offsets:
                    wanted[o : o + dims[r]] = mine
                sums += [sum(grad[o + c].item() for o in offsets) for c in range(dims[r])]
        value, ragged = torch.tensor(values, dtype=dtype), Ragged.from_lists(pos)
        fill_with_offset_map(ragged, value, found.value_offset, buffer, dims)
        flat = _flat(ragged, found.value_offset)
        fill_with_offset_map_plain(plain, value, flat, dims)
        for gradient in (
            fill_with_offset_map_gradient(ragged, grad, found.value_offset, dims),
            fill_with_offset_map_gradient_plain(*flat[:2], grad, *flat[2:], dims),
        ):
            assert gradient.dtype == dtype
            assert gradient.tolist() == sums
    tensor = finalize_shared_tensor([buffer], dtype)
    assert tensor.tolist() == wanted
    assert torch.equal(plain, tensor)


def test_results_do_not_depend_on_the_threads() -> None:
    n, dims = 60_000, [3, 4, 16, 5]
    key = Ragged(torch.randint(0, 9000, (n,)), torch.tensor([0, 20_000, 20_000, 50_000, n]))
    found = []
    for count in (1, 2, 4):
        with threads(count):
            torch.manual_seed(0)
            unique = unique_key_with_value_and_offset(key, dims)
            keys = unique.unique_key
            pos = Ragged(torch.arange(keys.values.shape[0]), keys.row_splits)
            value = torch.randn(int((keys.row_splits.diff() * torch.tensor(dims)).sum()))
            buffer = fill_with_offset_map(
                pos, value, unique.value_offset, unique.value_buffer, dims
            )
            grad = torch.randn(buffer.tensor.shape)
            found.append(
                (
                    buffer.tensor,
                    fill_with_offset_map_gradient(pos, grad, unique.value_offset, dims),
                )
            )
    for buffer, gradient in found[1:]:
        assert torch.equal(buffer, found[0][0])
        assert torch.equal(gradient, found[0][1])


def test_gradcheck() -> None:
    base = torch.randn(SIZE, dtype=torch.float64, requires_grad=True)

    def filled(one: Tensor, other: Tensor, base: Tensor) -> Tensor:
        buffer = SharedBuffer(base * 1)
        for pos, value in ((FIRST, one), (SECOND, other)):
            fill_with_offset_map(pos, value, WHERE, buffer, DIMS)
        return finalize_shared_tensor([buffer, buffer], torch.float64)

    one, other = _values(1, 2, dtype=torch.float64), _values(3, 4, 5, 6, 7, dtype=torch.float64)
    assert torch.autograd.gradcheck(filled, (one, other, base))
    zeros = torch.zeros(SIZE, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda one, other: filled(one, other, zeros), (one, other))


def test_a_second_gradient_is_refused_not_wrong() -> None:
    value = _values(1, 2)
    buffer = fill_with_offset_map(FIRST, value, WHERE, SharedBuffer.zeros(SIZE), DIMS)
    total = (finalize_shared_tensor([buffer], torch.float32) ** 2).sum()
    (grad,) = torch.autograd.grad(total, value, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_opcheck() -> None:
    keys, row_splits, offsets, inner = _flat(SECOND)
    op = torch.ops.hedgerow.fill_with_offset_map_gradient.default
    torch.library.opcheck(op, (keys, row_splits, torch.randn(SIZE), offsets, inner, DIMS))


def test_gradients_that_are_not_contiguous_are_taken() -> None:
    value = _values(1, 2)
    buffer = fill_with_offset_map(FIRST, value, WHERE, SharedBuffer.zeros(SIZE), DIMS)
    finalize_shared_tensor([buffer], torch.float32).backward(torch.arange(18.0)[::2])
    assert value.grad is not None
    assert value.grad.tolist() == [4, 6]


def test_in_place_fills_break_what_still_needs_the_old_values() -> None:
    buffer = fill_with_offset_map(FIRST, _values(1, 2), WHERE, SharedBuffer.zeros(SIZE), DIMS)
    squared = (buffer.tensor**2).sum()
    fill_with_offset_map(SECOND, _values(3, 4, 5, 6, 7), WHERE, buffer, DIMS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


def test_a_million_ids_take_scratch_for_rows_and_tasks_alone() -> None:
    n, tasks = 1_000_000, 245
    key = Ragged(torch.arange(n), torch.tensor([0, n]))
    found = unique_key_with_value_and_offset(key, [16])
    value, pos = torch.ones(16 * n), key
    native.reset_scratch_bytes()
    fill_with_offset_map(pos, value, found.value_offset, found.value_buffer, [16])
    fill_with_offset_map_gradient(pos, value, found.value_offset, [16])
    # Twice: where each row's values start, and the first fault of each task.
    assert native.scratch_bytes() <= 2 * (8 + 16 * tasks)
