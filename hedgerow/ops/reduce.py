"""Reduces vectors by row, where the row of each vector is given by its number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..core.shapes import Float, Int64
from . import arguments
from .library import register, unknown_size


def reduce_sum(
    id_indices: Int64[Tensor, "n columns"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    *,
    validate: bool = False,
) -> Float[Tensor, "rows dim"]:
    """Returns the sum of the vectors of each row; zeros for a row without vectors.

    Column 0 of `id_indices` is the row of each vector, in any order. The first element of
    `id_length` is the number of rows.

    >>> rows, values = torch.tensor([[0], [0], [2]]), torch.tensor([[1.0], [2.0], [4.0]])
    >>> reduce_sum(rows, values, torch.tensor([3])).tolist()
    [[3.0], [0.0], [4.0]]
    """
    return _SUM(*_ready(id_indices, id_values, id_length), validate)


def reduce_mean(
    id_indices: Int64[Tensor, "n columns"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    *,
    validate: bool = False,
) -> Float[Tensor, "rows dim"]:
    """Returns the mean of the vectors of each row; zeros for a row without vectors.

    Arguments as for `reduce_sum`.

    >>> rows, values = torch.tensor([[0], [0], [2]]), torch.tensor([[1.0], [2.0], [4.0]])
    >>> reduce_mean(rows, values, torch.tensor([3])).tolist()
    [[1.5], [0.0], [4.0]]
    """
    return _MEAN(*_ready(id_indices, id_values, id_length), validate)[0]


def reduce_sqrtn(
    id_indices: Int64[Tensor, "n columns"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    *,
    validate: bool = False,
) -> Float[Tensor, "rows dim"]:
    """Returns the square root of the sum of squares per column. It does not divide by the count.

    Arguments as for `reduce_sum`. Where the result is 0, the gradient is 0.

    >>> rows, values = torch.tensor([[1], [1]]), torch.tensor([[3.0], [4.0]])
    >>> reduce_sqrtn(rows, values, torch.tensor([2])).tolist()
    [[0.0], [5.0]]
    """
    return _SQRTN(*_ready(id_indices, id_values, id_length), validate)


def fused_reduce_sum_and_split(
    id_indices: Int64[Tensor, "n"],
    id_values: Float[Tensor, "n dim"],
    id_length: Int64[Tensor, "any"] | int,
    split_dims: Sequence[int],
    *,
    validate: bool = False,
) -> list[Float[Tensor, "rows width"]]:
    """Returns the sum of each row's vectors, with the columns split into `split_dims`.

    >>> values = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    >>> for part in fused_reduce_sum_and_split(torch.tensor([0, 0]), values, 1, [1, 2]):
    ...     print(part.tolist())
    [[11.0]]
    [[22.0, 33.0]]
    """
    _placed(id_indices, id_values)
    if isinstance(id_length, Tensor):
        rows = _rows_in(id_length)
    else:
        rows = arguments.whole("id_length", id_length)
    widths = arguments.wholes("split_dims", split_dims)
    return _SUM_AND_SPLIT(id_indices, id_values, rows, widths, validate)


def wide(values: Tensor) -> Tensor:
    """Returns half types as float32, in which sums lose less precision."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def sum_at(rows: Int64[Tensor, "n"], values: Tensor, count: int) -> Tensor:
    """Returns `count` rows of sums. Each value is added to its row, in order."""
    added = wide(values)
    sums = torch.zeros((count, *added.shape[1:]), dtype=added.dtype, device=added.device)
    return sums.index_add_(0, rows, added).to(values.dtype)


def cut_columns(rows: Float[Tensor, "rows dim"], widths: Sequence[int]) -> list[Tensor]:
    """Returns slices of the columns with these widths, each copied to its own memory."""
    parts = rows.split(list(widths), dim=1)
    return [part.clone(memory_format=torch.contiguous_format) for part in parts]


def check_widths(name: str, widths: Sequence[int], dim: int) -> None:
    """Raises unless the widths are at least 0 and add up to `dim`."""
    if any(width < 0 for width in widths):
        raise InputError(f"{name} is {list(widths)}; a width is at least 0.")
    if sum(widths) != dim:
        raise InputError(
            f"{name} is {list(widths)}, which adds up to {sum(widths)}; the vectors have {dim} "
            f"columns, and every column goes to one part."
        )


def _placed(id_indices: Tensor, id_values: Tensor) -> None:
    """Raises unless both are tensors on one device. torch's own error is no ValueError."""
    arguments.tensor("id_indices", id_indices)
    arguments.tensor("id_values", id_values)
    arguments.together("id_values", id_values, "id_indices", id_indices)


def _ready(
    id_indices: Tensor, id_values: Tensor, id_length: Tensor | int
) -> tuple[Tensor, Tensor, Tensor]:
    _placed(id_indices, id_values)
    if not isinstance(id_length, Tensor):
        id_length = torch.tensor([checks.count("id_length", id_length)])
    arguments.reachable("id_values", id_values, "id_length", id_length)
    return id_indices, id_values, id_length


def _rows_in(id_length: Tensor) -> int:
    if id_length.dtype not in arguments.WHOLE or not id_length.numel():
        raise InputError(
            f"id_length is a tensor of {id_length.dtype} and shape {tuple(id_length.shape)}; "
            f"it must be of int64 and hold the number of rows."
        )
    return checks.count("id_length", int(id_length.reshape(-1)[0]))


def _check(rows: Tensor, id_values: Tensor, count: int, validate: bool) -> None:
    arguments.typed("id_values", id_values, arguments.FLOATS, (rows.shape[0], None))
    arguments.together("id_values", id_values, "id_indices", rows)
    arguments.in_range("id_indices", rows, count, validate)


def _row_column(id_indices: Tensor) -> Tensor:
    arguments.typed("id_indices", id_indices, arguments.WHOLE, (None, None))
    if id_indices.shape[1] == 0:
        raise InputError("id_indices has no column; column 0 holds the row of each value.")
    return id_indices[:, 0]


def _sum(id_indices: Tensor, id_values: Tensor, id_length: Tensor, validate: bool) -> Tensor:
    rows, count = _row_column(id_indices), _rows_in(id_length)
    _check(rows, id_values, count, validate)
    return sum_at(rows, id_values, count)


def _mean(
    id_indices: Tensor, id_values: Tensor, id_length: Tensor, validate: bool
) -> tuple[Tensor, Tensor]:
    """Returns the means, and the divisor of each row for the gradient."""
    rows, count = _row_column(id_indices), _rows_in(id_length)
    _check(rows, id_values, count, validate)
    shares = torch.zeros(count, 1, dtype=torch.int64, device=rows.device)
    shares.index_add_(0, rows, shares.new_ones(rows.shape[0], 1)).clamp_min_(1)
    sums = sum_at(rows, wide(id_values), count)
    return (sums / shares).to(id_values.dtype), shares


def _sqrtn(id_indices: Tensor, id_values: Tensor, id_length: Tensor, validate: bool) -> Tensor:
    rows, count = _row_column(id_indices), _rows_in(id_length)
    _check(rows, id_values, count, validate)
    values = wide(id_values)
    return sum_at(rows, values * values, count).sqrt_().to(id_values.dtype)


def _shape(id_indices: Tensor, id_values: Tensor, id_length: Tensor, validate: bool) -> Tensor:
    return id_values.new_empty((unknown_size(), id_values.shape[1]))


def _mean_shapes(
    id_indices: Tensor, id_values: Tensor, id_length: Tensor, validate: bool
) -> tuple[Tensor, Tensor]:
    means = _shape(id_indices, id_values, id_length, validate)
    return means, id_indices.new_empty((means.shape[0], 1), dtype=torch.int64)


def _sum_keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0][:, 0])


def _mean_keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0][:, 0], output[1])


def _sqrtn_keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0][:, 0], inputs[1], output)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (rows,) = ctx.saved_tensors
    return None, grad.index_select(0, rows), None, None


def _mean_backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    rows, shares = ctx.saved_tensors
    return None, (wide(grad) / shares).to(grad.dtype).index_select(0, rows), None, None


def _sqrtn_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, values, norms = ctx.saved_tensors
    norms = wide(norms).index_select(0, rows)
    zero = norms == 0
    share = wide(values) / torch.where(zero, 1, norms)  # at most 1, so that nothing overflows
    taken = wide(grad).index_select(0, rows) * share
    return None, torch.where(zero, 0, taken).to(grad.dtype), None, None


_ARGUMENTS = "(Tensor id_indices, Tensor id_values, Tensor id_length, bool validate)"
_SUM = register(
    f"reduce_sum{_ARGUMENTS} -> Tensor",
    cpu=_sum,
    plain=_sum,
    shapes=_shape,
    backward=_sum_backward,
    keep=_sum_keep,
)
_MEAN = register(
    f"reduce_mean{_ARGUMENTS} -> (Tensor, Tensor)",
    cpu=_mean,
    plain=_mean,
    shapes=_mean_shapes,
    backward=_mean_backward,
    keep=_mean_keep,
)
_SQRTN = register(
    f"reduce_sqrtn{_ARGUMENTS} -> Tensor",
    cpu=_sqrtn,
    plain=_sqrtn,
    shapes=_shape,
    backward=_sqrtn_backward,
    keep=_sqrtn_keep,
)


def _sum_and_split(
    id_indices: Tensor, id_values: Tensor, id_length: int, split_dims: list[int], validate: bool
) -> list[Tensor]:
    rows = arguments.typed("id_indices", id_indices, arguments.WHOLE, (None,))
    count = checks.count("id_length", id_length)
    _check(rows, id_values, count, validate)
    check_widths("split_dims", split_dims, id_values.shape[1])
    return cut_columns(sum_at(rows, id_values, count), split_dims)


def _sum_and_split_shapes(
    id_indices: Tensor, id_values: Tensor, id_length: int, split_dims: list[int], validate: bool
) -> list[Tensor]:
    return [id_values.new_empty((id_length, width)) for width in split_dims]


def _sum_and_split_keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.like = [(part.shape, part.dtype, part.device) for part in output]


def _sum_and_split_backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    (rows,) = ctx.saved_tensors
    grad = torch.cat(or_zeros(grads, ctx.like), dim=1)
    return None, grad.index_select(0, rows), None, None, None


def or_zeros(
    grads: Sequence[Tensor | None],
    like: Sequence[tuple[Sequence[int], torch.dtype, torch.device]],
) -> list[Tensor]:
    """Returns gradients of outputs, with zeros for outputs that were not used."""
    return [
        torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
        for grad, (shape, dtype, device) in zip(grads, like, strict=True)
    ]


_SUM_AND_SPLIT = register(
    "fused_reduce_sum_and_split(Tensor id_indices, Tensor id_values, SymInt id_length, "
    "SymInt[] split_dims, bool validate) -> Tensor[]",
    cpu=_sum_and_split,
    plain=_sum_and_split,
    shapes=_sum_and_split_shapes,
    backward=_sum_and_split_backward,
    keep=_sum_and_split_keep,
)
