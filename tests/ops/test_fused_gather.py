"""Windows of a flat tensor against plain Python, their gradients, errors and forms in torch."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow import native
from hedgerow.ops import fused_gather
from hedgerow.ops.fused_gather import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
    fused_gather_embeddings_by_input_plain,
    fused_gather_gradient_plain,
)
from tests.support import threads

OPS = torch.ops.hedgerow


def flat(n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.arange(n) % 61 / 8 - 3).to(dtype)


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, list[Tensor], list[int]]:
    size = draw(st.integers(0, 20))
    dims = draw(st.lists(st.integers(0, size), max_size=4))
    kinds = st.sampled_from([torch.int32, torch.int64])
    return (
        size,
        [
            torch.tensor(draw(st.lists(st.integers(0, size - d), max_size=9)), dtype=draw(kinds))
            for d in dims
        ],
        dims,
    )


@settings(deadline=None)
@given(windows(), st.sampled_from([1.0, -0.5, 3.0]))
def test_windows_are_copied_and_their_gradients_added(
    case: tuple[int, list[Tensor], list[int]], scale: float
) -> None:
    size, offsets, dims = case
    fused = flat(size)
    tables = list(zip(offsets, dims, strict=True))
    wanted = [
        torch.stack([fused[o : o + d] for o in one.tolist()]) if len(one) else fused.new_empty(0, d)
        for one, d in tables
    ]
    for found in (
        fused_gather_embeddings_by_input(fused, offsets, dims),
        fused_gather_embeddings_by_input_plain(fused, offsets, dims, False),
    ):
        assert len(found) == len(wanted)
        assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
    sums = torch.zeros(size)
    for (one, d), grad in zip(tables, wanted, strict=True):
        for o, row in zip(one.tolist(), grad, strict=True):
            sums[o : o + d] += row * scale
    factor = torch.tensor(scale)
    for found in (
        fused_gather_embeddings_by_input_gradient(size, wanted, offsets, dims, scale),
        fused_gather_embeddings_by_input_gradient(size, wanted, offsets, dims, factor),
        fused_gather_gradient_plain(size, wanted, offsets, dims, factor, False),
    ):
        assert torch.equal(found, sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_any_float_type(dtype: torch.dtype) -> None:
    fused = flat(7, dtype).requires_grad_()
    (rows,) = fused_gather_embeddings_by_input(fused, [torch.tensor([0, 3, 1])], [3])
    assert torch.equal(rows, fused[torch.tensor([[0, 1, 2], [3, 4, 5], [1, 2, 3]])])
    (grad,) = torch.autograd.grad(rows, fused, torch.ones_like(rows))
    assert grad.dtype == dtype
    assert grad.tolist() == [1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 0.0]


def test_d7_the_scale_counts_on_the_cpu() -> None:
    grads, offsets = [torch.ones(2, 2)], [torch.tensor([0, 1], dtype=torch.int32)]
    for scale in (0.25, torch.tensor(0.25), torch.tensor(0.25, dtype=torch.float64)):
        found = fused_gather_embeddings_by_input_gradient(4, grads, offsets, [2], scale)
        assert found.tolist() == [0.25, 0.5, 0.25, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_d7_overlapping_windows_of_all_tables_add_up_with_any_threads(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    dims = [5, 64, 3, 16]
    offsets = [torch.randint(0, 3000, (13_000,), generator=generator) for _ in dims]
    grads = [torch.rand(13_000, d, generator=generator, dtype=dtype) for d in dims]
    found = []
    for count in (1, 2, 4):
        with threads(count):
            found.append(fused_gather_embeddings_by_input_gradient(3070, grads, offsets, dims, 0.3))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    plain = fused_gather_gradient_plain(3070, grads, offsets, dims, torch.tensor(0.3), False)
    torch.testing.assert_close(found[0], plain)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1])
def test_d17_a_window_outside_is_an_error(kind: torch.dtype, wrong: int) -> None:
    fused, dims = flat(6), [2, 3]
    offsets = [torch.tensor([4], dtype=kind), torch.tensor([3, wrong], dtype=kind)]
    grads = [torch.zeros(1, 2), torch.zeros(2, 3)]
    scale = torch.ones(())
    for call in (
        lambda: fused_gather_embeddings_by_input(fused, offsets, dims),
        lambda: fused_gather_embeddings_by_input_plain(fused, offsets, dims, False),
        lambda: fused_gather_embeddings_by_input_gradient(6, grads, offsets, dims),
        lambda: fused_gather_gradient_plain(6, grads, offsets, dims, scale, False),
    ):
        with pytest.raises(ValueError, match=rf"offsets\[1\] holds {wrong}; a window of 3"):
            call()


ONE = [torch.tensor([0])]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((flat(6), ONE, [1, 2]), "1 lists of offsets for 2 embedding_dims"),
        ((flat(6), ONE, [-1]), "embedding_dims is -1"),
        ((flat(6), ONE, [1.5]), "embedding_dims is 1.5"),
        ((flat(6).reshape(2, 3), ONE, [1]), "fused_embeddings has shape"),
        ((flat(6).long(), ONE, [1]), "fused_embeddings has dtype"),
        ((flat(6), [torch.tensor([0.0])], [1]), r"offsets\[0\] has dtype"),
        ((flat(6), [torch.tensor([[0]])], [1]), r"offsets\[0\] has shape"),
        ((flat(6), [[0]], [1]), r"fused_embedding_offsets\[0\] is a list"),
        (([0.0], ONE, [1]), "fused_embeddings is a list"),
        ((flat(6), ONE, [7]), r"embedding_dims\[0\] is 7; a window"),
    ],
)
def test_bad_arguments_of_the_forward(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fused_gather_embeddings_by_input(*args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((-1, [torch.ones(1, 2)], ONE, [2]), "fused_embeddings_size is -1"),
        ((6, [], ONE, [2]), "0 grads for 1 lists of offsets"),
        ((6, [torch.ones(2, 2)], ONE, [2]), r"grads\[0\] has shape \(2, 2\)"),
        ((6, [torch.ones(1, 3)], ONE, [2]), r"grads\[0\] has shape \(1, 3\)"),
        ((6, [torch.ones(1, 2).long()], ONE, [2]), r"grads\[0\] has dtype"),
        ((6, [torch.ones(1, 2), torch.ones(1, 2).double()], ONE * 2, [2, 2]), r"grads\[1\] has dt"),
        ((6, [torch.ones(1, 2)], ONE, [2], torch.ones(2)), "scale is a tensor"),
        ((6, [torch.ones(1, 2)], ONE, [2], torch.tensor(2)), "scale is a tensor of torch.int64"),
        ((6, [[1.0]], ONE, [2]), r"grads\[0\] is a list"),
    ],
)
def test_bad_arguments_of_the_gradient(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fused_gather_embeddings_by_input_gradient(*args)


def test_no_tables_are_zeros() -> None:
    assert fused_gather_embeddings_by_input(flat(3), [], []) == []
    assert fused_gather_embeddings_by_input_gradient(3, [], [], []).tolist() == [0.0] * 3


def test_gradcheck_and_a_table_that_is_not_used() -> None:
    offsets = [torch.tensor([0, 1, 2, 1]), torch.tensor([], dtype=torch.int64), torch.tensor([4])]
    fused = flat(8, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda fused: fused_gather_embeddings_by_input(fused, offsets, [3, 2, 4]), fused
    )
    fused_gather_embeddings_by_input(fused, offsets, [3, 2, 4])[2].sum().backward()
    assert fused.grad is not None
    assert fused.grad.tolist() == [0.0] * 4 + [1.0] * 4


def test_more_windows_than_one_grid_takes() -> None:
    """Monolith's sizes: 74,070 and 82,439 windows of widths 3 and 2."""
    dims, lengths = [3, 2], [74_070, 82_439]
    offsets = [torch.arange(n, dtype=torch.int32) * 2 % 9000 for n in lengths]
    fused = flat(9002)
    native.reset_scratch_bytes()
    found = fused_gather_embeddings_by_input(fused, offsets, dims)
    assert native.scratch_bytes() <= 8 * 3  # one number a table
    wanted = fused_gather_embeddings_by_input_plain(fused, offsets, dims, False)
    assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
    native.reset_scratch_bytes()
    fused_gather_embeddings_by_input_gradient(9002, found, offsets, dims)
    assert native.scratch_bytes() == 0


def test_nothing_contiguous_is_copied() -> None:
    fused, offsets = flat(6), [torch.tensor([0, 1]), torch.tensor([2])]
    with mock.patch.object(fused_gather, "native", wraps=native) as core:
        fused_gather_embeddings_by_input(fused, offsets, [2, 3])
    (call,) = core.copy_windows.call_args_list
    assert call.args[0] == [one.data_ptr() for one in offsets]
    assert call.args[5] == fused.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_knows_the_ops(dtype: torch.dtype) -> None:
    offsets = [torch.tensor([0, 1], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)]
    fused = flat(6, dtype).requires_grad_()
    torch.library.opcheck(
        OPS.fused_gather_embeddings_by_input.default, (fused, offsets, [2, 3], False)
    )
    grads = [torch.ones(2, 2, dtype=dtype), torch.ones(1, 3, dtype=dtype)]
    torch.library.opcheck(
        OPS.fused_gather_embeddings_by_input_gradient.default,
        (6, grads, offsets, [2, 3], torch.tensor(0.5), False),
    )
