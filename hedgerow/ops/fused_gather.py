"""Gathers windows of one flat tensor as rows of several tables, and sums gradients back into it."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import DtypeError, InputError
from ..core.shapes import Float
from .arguments import (
    ADDED_BY_CORE,
    FLOATS,
    WHOLE,
    looks_inside,
    on_device,
    one_place,
    tensor,
    tensors,
    together,
    typed,
    widened,
)
from .library import register


def fused_gather_embeddings_by_input(
    fused_embeddings: Float[Tensor, "e"],
    fused_embedding_offsets: Sequence[Tensor],
    embedding_dims: Sequence[int],
    *,
    validate: bool = False,
) -> list[Float[Tensor, "n d"]]:
    """Returns per table the windows `fused_embeddings[o : o + dim]` of its offsets o.

    >>> offsets = [torch.tensor([3, 0]), torch.tensor([2])]
    >>> [t.tolist() for t in fused_gather_embeddings_by_input(torch.arange(6.0), offsets, [2, 3])]
    [[[3.0, 4.0], [0.0, 1.0]], [[2.0, 3.0, 4.0]]]
    """
    dims = [checks.count("embedding_dims", dim) for dim in embedding_dims]
    offsets = tensors("fused_embedding_offsets", fused_embedding_offsets)
    one_place(fused_embeddings=tensor("fused_embeddings", fused_embeddings), offsets=offsets)
    return _gather(fused_embeddings, offsets, dims, validate)


def fused_gather_embeddings_by_input_gradient(
    fused_embeddings_size: int,
    grads: Sequence[Float[Tensor, "n d"]],
    embedding_offsets: Sequence[Tensor],
    embedding_dims: Sequence[int],
    scale: float | Tensor = 1,
    *,
    validate: bool = False,
) -> Float[Tensor, "e"]:
    """Returns the flat tensor's gradient: `grads * scale` added into the windows of all tables.

    >>> grads, offsets = [torch.ones(2, 2)], [torch.tensor([1, 2])]
    >>> fused_gather_embeddings_by_input_gradient(4, grads, offsets, [2], scale=0.5).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    size = checks.count("fused_embeddings_size", fused_embeddings_size)
    dims = [checks.count("embedding_dims", dim) for dim in embedding_dims]
    rows, offsets = tensors("grads", grads), tensors("embedding_offsets", embedding_offsets)
    one_place(grads=rows, offsets=offsets)
    return _gradient(size, rows, offsets, dims, _factor(scale), validate)


def _factor(scale: float | Tensor) -> Float[Tensor, ""]:
    if isinstance(scale, Tensor):
        return scale
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
        raise DtypeError(f"scale is {scale!r}; pass a number or a float tensor of shape ().")
    return torch.tensor(float(scale), dtype=torch.float64)


def _offsets(offsets: Sequence[Tensor], dims: Sequence[int]) -> list[Tensor]:
    if len(offsets) != len(dims):
        raise InputError(
            f"{len(offsets)} lists of offsets for {len(dims)} embedding_dims; pass one for each."
        )
    for dim in dims:
        checks.count("embedding_dims", dim)
    tables = [typed(f"offsets[{i}]", one, WHOLE, (None,)) for i, one in enumerate(offsets)]
    same = all(one.dtype == torch.int32 for one in tables)
    return tables if same else [one.long() for one in tables]


def _check_dims(offsets: Sequence[Tensor], dims: Sequence[int], size: int) -> None:
    """Raises if a window is longer than the flat tensor. Needs no look at the offsets."""
    for i, (one, dim) in enumerate(zip(offsets, dims, strict=True)):
        if len(one) and dim > size:
            raise InputError(
                f"embedding_dims[{i}] is {dim}; a window must lie within the {size} values of the "
                f"flat tensor."
            )


def _outside(offsets: Sequence[Tensor], dims: Sequence[int], size: int, number: int) -> InputError:
    """Returns the error for window `number`, counted over all tables."""
    table = 0
    while number >= len(offsets[table]):
        number -= len(offsets[table])
        table += 1
    return InputError(
        f"offsets[{table}] holds {int(offsets[table][number])}; a window of {dims[table]} values "
        f"must lie within the {size} of the flat tensor."
    )


def _check_plain(offsets: Sequence[Tensor], dims: Sequence[int], size: int, validate: bool) -> None:
    before = 0
    for one, dim in zip(offsets, dims, strict=True):
        if looks_inside(one, validate):
            wrong = ((one < 0) | (one > size - dim)).nonzero()
            if len(wrong):
                raise _outside(offsets, dims, size, before + int(wrong[0]))
        before += len(one)


# ---- forward


def _values(fused: Tensor, offsets: Sequence[Tensor]) -> Tensor:
    values = typed("fused_embeddings", fused, FLOATS, (None,))
    for i, one in enumerate(offsets):
        together("fused_embeddings", values, f"offsets[{i}]", one)
    return values


def _gather_cpu(
    fused: Tensor, offsets: Sequence[Tensor], dims: Sequence[int], validate: bool
) -> list[Tensor]:
    tables = _offsets(offsets, dims)
    values = _values(fused, tables)
    size = values.shape[0]
    _check_dims(tables, dims, size)
    rows = [values.new_empty((len(one), dim)) for one, dim in zip(tables, dims, strict=True)]
    outside = native.copy_windows(
        [one.data_ptr() for one in tables],
        [len(one) for one in tables],
        dims,
        tables[0].element_size() if tables else 4,
        values.element_size(),
        values.data_ptr(),
        size,
        [one.data_ptr() for one in rows],
    )
    if outside >= 0:
        raise _outside(tables, dims, size, outside)
    return rows


def fused_gather_embeddings_by_input_plain(
    fused: Tensor, offsets: Sequence[Tensor], dims: Sequence[int], validate: bool
) -> list[Tensor]:
    """Implements `fused_gather_embeddings_by_input` with torch's ops, on a view of all windows."""
    tables = _offsets(offsets, dims)
    values = _values(fused, tables)
    _check_dims(tables, dims, values.shape[0])
    _check_plain(tables, dims, values.shape[0], validate)
    return [
        values.unfold(0, dim, 1)[one.long()] if len(one) else values.new_empty((0, dim))
        for one, dim in zip(tables, dims, strict=True)
    ]


def fused_gather_by_kernel(
    fused: Tensor, offsets: Sequence[Tensor], dims: Sequence[int], validate: bool
) -> list[Tensor]:
    """Implements `fused_gather_embeddings_by_input` on a device, with one launch per table."""
    from ..kernels.segments import copy_windows

    tables = _offsets(offsets, dims)
    values = _values(fused, tables)
    _check_dims(tables, dims, values.shape[0])
    _check_plain(tables, dims, values.shape[0], validate)
    return [copy_windows(one, values, dim) for one, dim in zip(tables, dims, strict=True)]


def _gather_shapes(
    fused: Tensor, offsets: Sequence[Tensor], dims: Sequence[int], validate: bool
) -> list[Tensor]:
    return [fused.new_empty((one.shape[0], dim)) for one, dim in zip(offsets, dims, strict=True)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    fused, offsets, ctx.dims, _ = inputs
    ctx.size = fused.shape[0]
    ctx.save_for_backward(*offsets)


def _gather_backward(ctx: Any, grads: Sequence[Tensor]) -> tuple[Any, ...]:
    offsets = list(ctx.saved_tensors)
    one = torch.ones((), dtype=torch.float64)
    grad = _gradient(ctx.size, list(grads), offsets, ctx.dims, one, False)
    return grad, [None] * len(offsets), None, None


_gather = register(
    "fused_gather_embeddings_by_input(Tensor fused_embeddings, Tensor[] offsets, int[] dims, "
    "bool validate) -> Tensor[]",
    cpu=_gather_cpu,
    plain=fused_gather_embeddings_by_input_plain,
    device=fused_gather_by_kernel,
    shapes=_gather_shapes,
    backward=_gather_backward,
    keep=_keep,
)


# ---- gradient


def _grads(
    grads: Sequence[Tensor], offsets: Sequence[Tensor], dims: Sequence[int], scale: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    if len(grads) != len(offsets):
        raise InputError(
            f"{len(grads)} grads for {len(offsets)} lists of offsets; pass one for each."
        )
    tables = _offsets(offsets, dims)
    if scale.dim() or not scale.is_floating_point():
        raise DtypeError(
            f"scale is a tensor of {scale.dtype} and shape {tuple(scale.shape)}; pass a number or "
            f"a float tensor of shape ()."
        )
    rows: list[Tensor] = []
    for i, (grad, one, dim) in enumerate(zip(grads, tables, dims, strict=True)):
        dtypes = (rows[0].dtype,) if rows else FLOATS
        rows.append(typed(f"grads[{i}]", grad, dtypes, (one.shape[0], dim)))
        together("grads[0]", rows[0], f"grads[{i}]", grad)
        together("grads[0]", rows[0], f"offsets[{i}]", one)
    return rows, tables


def _gradient_cpu(
    size: int,
    grads: Sequence[Tensor],
    offsets: Sequence[Tensor],
    dims: Sequence[int],
    scale: Tensor,
    validate: bool,
) -> Tensor:
    rows, tables = _grads(grads, offsets, dims, scale)
    if not rows or rows[0].dtype not in ADDED_BY_CORE:
        return fused_gather_gradient_plain(size, rows, tables, dims, scale, validate)
    sums = rows[0].new_empty(size)
    outside = native.add_windows(
        [one.data_ptr() for one in tables],
        [len(one) for one in tables],
        dims,
        tables[0].element_size(),
        sums.element_size(),
        [one.data_ptr() for one in rows],
        float(scale),
        sums.data_ptr(),
        size,
    )
    if outside >= 0:
        raise _outside(tables, dims, size, outside)
    return sums


def fused_gather_gradient_plain(
    size: int,
    grads: Sequence[Tensor],
    offsets: Sequence[Tensor],
    dims: Sequence[int],
    scale: Tensor,
    validate: bool,
) -> Tensor:
    """Computes the gradient of the flat tensor with torch's ops, one `index_add_` per table."""
    rows, tables = _grads(grads, offsets, dims, scale)
    _check_plain(tables, dims, size, validate)
    _check_dims(tables, dims, size)
    if not rows:
        return torch.zeros(size, device=scale.device)
    sums = widened(rows[0].new_zeros(size))
    for grad, one, dim in zip(rows, tables, dims, strict=True):
        at = one.long()[:, None] + torch.arange(dim, device=one.device)
        sums.index_add_(0, at.flatten(), (widened(grad) * scale.to(sums)).flatten())
    return sums.to(rows[0].dtype)


def fused_gather_gradient_by_kernel(
    size: int,
    grads: Sequence[Tensor],
    offsets: Sequence[Tensor],
    dims: Sequence[int],
    scale: Tensor,
    validate: bool,
) -> Tensor:
    """Computes the gradient of the flat tensor on a device, with one launch per table.

    The order of summation is not fixed.
    """
    from ..kernels.segments import add_windows

    rows, tables = _grads(grads, offsets, dims, scale)
    _check_plain(tables, dims, size, validate)
    _check_dims(tables, dims, size)
    if not rows:
        return torch.zeros(size, device=scale.device)
    sums = widened(rows[0].new_empty(0)).new_zeros(size)
    factor = on_device(scale, sums)
    for grad, one in zip(rows, tables, strict=True):
        add_windows(one, grad, factor, sums)
    return sums.to(rows[0].dtype)


def _gradient_shapes(
    size: int,
    grads: Sequence[Tensor],
    offsets: Sequence[Tensor],
    dims: Sequence[int],
    scale: Tensor,
    validate: bool,
) -> Tensor:
    return grads[0].new_empty(size) if grads else scale.new_empty(size, dtype=torch.float32)


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, offsets, ctx.dims, scale, _ = inputs
    ctx.save_for_backward(scale, *offsets)


def _gradient_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    scale, *offsets = ctx.saved_tensors
    rows = _gather(grad * scale.to(grad), offsets, ctx.dims, False)
    return None, rows, [None] * len(offsets), None, None, None


_gradient = register(
    "fused_gather_embeddings_by_input_gradient(SymInt size, Tensor[] grads, Tensor[] offsets, "
    "int[] dims, Tensor scale, bool validate) -> Tensor",
    cpu=_gradient_cpu,
    plain=fused_gather_gradient_plain,
    device=fused_gather_gradient_by_kernel,
    shapes=_gradient_shapes,
    backward=_gradient_backward,
    keep=_keep_gradient,
)
