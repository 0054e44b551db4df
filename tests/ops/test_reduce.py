from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow.ops import reduce

OPS = {how: getattr(reduce, f"reduce_{how}") for how in ("sum", "mean", "sqrtn")}
ROWS = st.lists(st.integers(0, 5), max_size=12)


def _values(count: int, dim: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    eighths = torch.randint(-32, 33, (count, dim), generator=random)
    return (eighths / 8).to(dtype)  # their sums are exact


def _model(how: str, rows: list[int], values: Tensor, count: int) -> list[list[float]]:
    found = []
    for row in range(count):
        mine = [values[i].tolist() for i, at in enumerate(rows) if at == row]
        columns = [[vector[d] for vector in mine] for d in range(values.shape[1])]
        if how == "sqrtn":
            found.append([math.sqrt(sum(x * x for x in column)) for column in columns])
        else:
            share = max(len(mine), 1) if how == "mean" else 1
            found.append([sum(column) / share for column in columns])
    return found


@settings(deadline=None)
@given(ROWS, st.integers(0, 4), st.sampled_from(sorted(OPS)), st.integers(0, 3))
def test_rows_are_reduced_as_a_loop_does(
    rows: list[int], dim: int, how: str, more_columns: int
) -> None:
    values = _values(len(rows), dim)
    indices = torch.full((len(rows), 1 + more_columns), 99)  # other columns do not count
    indices[:, 0] = torch.tensor(rows, dtype=torch.int64)
    found = OPS[how](indices, values, torch.tensor([6, -7]))
    wanted = torch.tensor(_model(how, rows, values, 6), dtype=torch.float32).reshape(6, dim)
    torch.testing.assert_close(found, wanted)


@settings(deadline=None)
@given(ROWS, st.lists(st.integers(0, 3), max_size=4), st.booleans())
def test_the_fused_sum_is_the_sum_cut_into_columns(
    rows: list[int], widths: list[int], as_tensor: bool
) -> None:
    values = _values(len(rows), sum(widths))
    at = torch.tensor(rows, dtype=torch.int64)
    length = torch.tensor([6]) if as_tensor else 6
    parts = reduce.fused_reduce_sum_and_split(at, values, length, widths)
    whole = reduce.reduce_sum(at[:, None], values, torch.tensor([6]))
    assert [part.shape[1] for part in parts] == widths
    assert torch.equal(torch.cat([*parts, torch.zeros(6, 0)], dim=1), whole)
    assert all(part.is_contiguous() for part in parts)


def test_parts_do_not_share_memory_even_of_one_row() -> None:
    first, second = reduce.fused_reduce_sum_and_split(
        torch.tensor([0]), torch.tensor([[1.0, 2.0]]), 1, [1, 1]
    )
    first.zero_()
    assert second.tolist() == [[2.0]]
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


@pytest.mark.parametrize("how", sorted(OPS))
def test_gradients_are_those_of_differences(how: str) -> None:
    rows = torch.tensor([[3], [0], [3], [1], [3]])
    values = _values(5, 3, dtype=torch.float64).add(0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: OPS[how](rows, x, torch.tensor([5])), values)
    assert torch.autograd.gradgradcheck(lambda x: OPS[how](rows, x, torch.tensor([5])), values)


def test_the_gradient_of_a_fused_sum_is_that_of_differences() -> None:
    rows = torch.tensor([3, 0, 3])
    values = _values(3, 3, dtype=torch.float64).requires_grad_()
    fused = reduce.fused_reduce_sum_and_split
    assert torch.autograd.gradcheck(lambda x: fused(rows, x, 4, [1, 0, 2]), values)


def test_a_part_that_nobody_uses_gives_zeros() -> None:
    values = torch.ones(2, 3, requires_grad=True)
    parts = reduce.fused_reduce_sum_and_split(torch.tensor([0, 1]), values, 2, [1, 2])
    (grad,) = torch.autograd.grad(parts[0].sum(), values)
    assert grad.tolist() == [[1, 0, 0], [1, 0, 0]]


def test_the_gradient_of_sqrtn_is_zero_where_the_result_is() -> None:
    tiny = 1e-30  # its square is 0 in float32
    values = torch.tensor([[0.0, tiny, 3.0], [0.0, 0.0, 4.0]], requires_grad=True)
    found = reduce.reduce_sqrtn(torch.tensor([[0], [0]]), values, torch.tensor([2]))
    assert found[0].tolist() == [0.0, 0.0, 5.0]
    (grad,) = torch.autograd.grad(found, values, torch.ones(2, 3))
    torch.testing.assert_close(grad, torch.tensor([[0.0, 0.0, 0.6], [0.0, 0.0, 0.8]]))


def test_d8_the_mean_of_an_empty_row_is_zero_and_no_nan() -> None:
    values = torch.tensor([[2.0], [4.0]], requires_grad=True)
    found = reduce.reduce_mean(torch.tensor([[2], [2]]), values, torch.tensor([4]))
    assert found.tolist() == [[0.0], [0.0], [3.0], [0.0]]
    found.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[0.5], [0.5]]


def test_d8b_the_gradient_of_a_mean_counts_rows_beyond_the_width() -> None:
    rows = torch.tensor([[7], [7], [7], [2], [7]])  # of vectors with one column
    values = torch.zeros(5, 1, requires_grad=True)
    reduce.reduce_mean(rows, values, torch.tensor([9])).sum().backward()
    assert values.grad is not None
    assert values.grad.flatten().tolist() == [0.25, 0.25, 0.25, 1.0, 0.25]


def test_d10_parts_that_leave_columns_out_are_refused() -> None:
    rows, values = torch.tensor([0]), torch.zeros(1, 4)
    for widths in ([1, 2], [4, 1], [], [5, -1]):
        with pytest.raises(ValueError, match="split_dims"):
            reduce.fused_reduce_sum_and_split(rows, values, 1, widths)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_in_float32(dtype: torch.dtype) -> None:
    values = torch.ones(4096, 1, dtype=dtype, requires_grad=True)  # bfloat16 stops at 256
    rows = torch.zeros(4096, 1, dtype=torch.int64)
    for how, wanted in (("sum", 4096), ("mean", 1), ("sqrtn", 64)):
        found = OPS[how](rows, values, torch.tensor([1]))
        assert (found.dtype, found.item()) == (dtype, wanted)
        (grad,) = torch.autograd.grad(found.sum(), values)
        assert (grad.dtype, grad[0].item()) == (dtype, wanted / 4096)


def _bad(**changed: object) -> dict[str, object]:
    good = {
        "id_indices": torch.tensor([[0], [1]]),
        "id_values": torch.zeros(2, 3),
        "id_length": torch.tensor([2]),
    }
    return {**good, **changed}


@pytest.mark.parametrize("how", sorted(OPS))
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"id_indices": torch.tensor([[0], [2]])}, "id_indices holds 2"),
        ({"id_indices": torch.tensor([[0], [-1]])}, "id_indices holds -1"),
        ({"id_indices": torch.tensor([[0]])}, "id_values has shape"),
        ({"id_indices": torch.zeros(2, 0, dtype=torch.int64)}, "no column"),
        ({"id_indices": torch.tensor([0, 1])}, "id_indices has shape"),
        ({"id_indices": torch.zeros(2, 1)}, "id_indices has dtype"),
        ({"id_values": torch.zeros(2)}, "id_values has shape"),
        ({"id_values": torch.zeros(2, 3, dtype=torch.int64)}, "id_values has dtype"),
        ({"id_length": torch.tensor([-1])}, "id_length is -1"),
        ({"id_length": torch.tensor([], dtype=torch.int64)}, "id_length is a tensor"),
        ({"id_length": torch.tensor([2.0])}, "id_length is a tensor of torch.float32"),
        ({"id_length": "2"}, "id_length is '2'"),
    ],
)
def test_bad_arguments_are_refused_with_their_name(
    how: str, changed: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        OPS[how](**_bad(**changed))


@pytest.mark.parametrize("how", sorted(OPS))
def test_tensors_of_two_devices_are_refused(how: str) -> None:
    form = getattr(reduce, f"_{how}")  # torch would run the form of shapes for the meta device
    with pytest.raises(ValueError, match="id_indices is on cpu, id_values on meta"):
        form(torch.tensor([[0]]), torch.zeros(1, 3, device="meta"), torch.tensor([1]), False)


def _examples() -> dict[str, tuple[object, ...]]:
    rows, values = torch.tensor([[1], [0], [1]]), torch.randn(3, 2, requires_grad=True)
    samples: dict[str, tuple[object, ...]] = {
        f"reduce_{how}": (rows, values, torch.tensor([3]), False) for how in OPS
    }
    return {**samples, "fused_reduce_sum_and_split": (rows[:, 0].clone(), values, 3, [1, 1], False)}


@pytest.mark.parametrize("name", sorted(_examples()))
def test_torch_takes_the_op(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.hedgerow, name).default, _examples()[name])


@settings(deadline=None, max_examples=5)
@given(st.sampled_from(sorted(OPS)), st.integers(1, 9))
def test_a_compiled_reduction_equals_the_eager_one(how: str, count: int) -> None:
    rows = torch.randint(0, 4, (count, 1), generator=torch.Generator().manual_seed(count))

    def pipeline(rows: Tensor, values: Tensor, length: Tensor) -> Tensor:
        return OPS[how](rows, values * 2, length).sum(1)

    compiled = torch.compile(pipeline, fullgraph=True, dynamic=True, backend="aot_eager")
    grads = []
    for call in (pipeline, compiled):
        values = _values(count, 3).requires_grad_()
        out = call(rows, values, torch.tensor([4]))
        out.sum().backward()
        grads.append((out.detach(), values.grad))
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("how", sorted(OPS))
def test_results_are_repeatable_and_inputs_untouched(how: str) -> None:
    random = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 50, (20_000, 1), generator=random)
    values = torch.randn(20_000, 7, generator=random)
    before = values.clone()
    first = OPS[how](rows, values, torch.tensor([50]))
    assert torch.equal(values, before)
    assert torch.equal(_with_threads(2, lambda: OPS[how](rows, values, torch.tensor([50]))), first)


def _with_threads(count: int, call: Callable[[], Tensor]) -> Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return call()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_norms_gradient_does_not_overflow_on_the_way(dtype: torch.dtype) -> None:
    value, fed = (1e18, 1e25) if dtype == torch.float32 else (1000.0, 100.0)
    values = torch.full((1, 1), value, dtype=dtype, requires_grad=True)
    norm = OPS["sqrtn"](torch.tensor([[0]]), values, torch.tensor([1]))
    norm.backward(torch.full((1, 1), fed, dtype=dtype))
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.full((1, 1), fed, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_halves_are_rounded_once(dtype: torch.dtype) -> None:
    rows = torch.tensor([[0], [0], [0]])
    values = torch.tensor([[1.1], [0.3], [0.7]]).to(dtype)
    for call in OPS.values():
        half = values.clone().requires_grad_()
        out = call(rows, half, torch.tensor([1]))
        out.backward(torch.full_like(out, 0.9))
        exact = values.double().requires_grad_()
        wide = call(rows, exact, torch.tensor([1]))
        wide.backward(torch.full_like(out, 0.9).double())
        assert half.grad is not None
        assert exact.grad is not None
        torch.testing.assert_close(
            half.grad.double(), exact.grad, rtol=torch.finfo(dtype).eps, atol=0
        )


@pytest.mark.parametrize("value", [[[0]], np.zeros((1, 1), np.int64), "x", None], ids=str)
@pytest.mark.parametrize("name", ["id_indices", "id_values"])
def test_other_kinds_than_tensors_are_a_value_error(name: str, value: Any) -> None:
    for call in OPS.values():
        with pytest.raises(ValueError, match=f"{name} is a"):
            call(**_bad(**{name: value}))
    given = {"id_indices": torch.tensor([0]), "id_values": torch.ones(1, 1), name: value}
    with pytest.raises(ValueError, match=f"{name} is a"):
        reduce.fused_reduce_sum_and_split(**given, id_length=1, split_dims=[1])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"id_length": "3"}, "id_length is '3'"),
        ({"id_length": True}, "id_length is True"),
        ({"id_length": None}, "id_length is None"),
        ({"id_length": 2.0}, "id_length is 2.0"),
        ({"split_dims": "1"}, "split_dims is a str"),
        ({"split_dims": 1}, "split_dims is a int"),
        ({"split_dims": [1.0]}, r"split_dims\[0\] is 1.0"),
        ({"id_values": torch.ones(1, 1, device="meta")}, "id_indices is on cpu"),
    ],
)
def test_other_kinds_for_sum_and_split_are_a_value_error(changed: Any, said: str) -> None:
    given = {
        "id_indices": torch.tensor([0]),
        "id_values": torch.ones(1, 1),
        "id_length": 1,
        "split_dims": [1],
    }
    with pytest.raises(ValueError, match=said):
        reduce.fused_reduce_sum_and_split(**{**given, **changed})


@pytest.mark.parametrize("how", sorted(OPS))
def test_another_device_is_a_value_error_at_the_door(how: str) -> None:
    for name, value in (
        ("id_values", torch.zeros(2, 3, device="meta")),
        ("id_length", torch.zeros(1, dtype=torch.int64, device="meta")),
    ):
        with pytest.raises(ValueError, match="meta"):
            OPS[how](**_bad(**{name: value}))
