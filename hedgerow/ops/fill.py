"""Fills one buffer with the vectors that shards answer, each at all places of its key.

Filling writes in place, so it is no op that torch knows by name; its gradient by itself is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import native
from ..core.errors import DtypeError, InputError
from ..core.ids import Ragged
from ..core.shapes import Float
from . import arguments
from .library import register, unknown_size
from .offsets import ValueOffset, total_values, widths
from .shared_buffer import SharedBuffer

_Flat = tuple[Tensor, Tensor, Tensor, Tensor]  # keys, their row_splits, offsets, inner splits


def fill_with_offset_map(
    pos: Ragged,
    value: Float[Tensor, "floats"],
    value_offset: ValueOffset,
    value_buffer: SharedBuffer | None,
    dims: Sequence[int],
    *,
    validate: bool = False,
) -> SharedBuffer:
    """Copies every vector of `value` to all places of its key, and returns the same buffer.

    `pos` tells which distinct keys (numbers over all rows) the vectors belong to, in order; one of
    row r has `dims[r]` values. Several parts fill one buffer, each other keys. Differentiable in
    `value`.

    >>> where = ValueOffset(torch.tensor([0, 4, 2]), torch.tensor([0, 2]), torch.tensor([0, 2, 3]))
    >>> buffer = SharedBuffer.zeros(6)
    >>> part = Ragged.from_lists([[0]])
    >>> fill_with_offset_map(part, torch.tensor([7.0, 8.0]), where, buffer, [2]).tensor.tolist()
    [7.0, 8.0, 0.0, 0.0, 7.0, 8.0]
    """
    if not isinstance(value_buffer, SharedBuffer):
        raise InputError(
            f"value_buffer is {value_buffer!r}; pass a SharedBuffer, such as the one of "
            f"unique_key_with_value_and_offset(..., generate_buffer=True)."
        )
    tensor = value_buffer.tensor
    value = arguments.typed("value", value, (tensor.dtype,), (None,))
    arguments.together("value_buffer", tensor, "value", value)
    flat, dims = _flat(pos, value_offset, dims)
    flat = _check(flat, "value_buffer", tensor, dims, validate)
    if arguments.looks_inside(value, validate):
        wanted = total_values(flat[1], dims)
        if value.shape[0] != wanted:
            raise InputError(f"value has {value.shape[0]} values; pos and dims say {wanted}.")
    repeats = value_buffer.overlaps(flat[0], value_offset)
    _Fill.apply(tensor, value, flat, dims, repeats, repeats or value_buffer.keeps_base)
    return value_buffer


def fill_with_offset_map_gradient(
    pos: Ragged,
    grad: Float[Tensor, "buffer"],
    value_offset: ValueOffset,
    dims: Sequence[int],
    *,
    validate: bool = False,
) -> Float[Tensor, "floats"]:
    """The gradient of the `value` of a part: for each vector the sum over all places of its key.

    >>> where = ValueOffset(torch.tensor([0, 4, 2]), torch.tensor([0, 2]), torch.tensor([0, 2, 3]))
    >>> grad = torch.tensor([1.0, 2.0, 0.0, 0.0, 10.0, 20.0])
    >>> fill_with_offset_map_gradient(Ragged.from_lists([[0]]), grad, where, [2]).tolist()
    [11.0, 22.0]
    """
    if not isinstance(grad, Tensor):
        raise DtypeError(f"grad is a {type(grad).__name__}; pass a torch.Tensor.")
    (keys, row_splits, offsets, inner), dims = _flat(pos, value_offset, dims)
    return _gradient(keys, row_splits, grad, offsets, inner, dims, validate)


def fill_trusted(
    pos: Ragged,
    value: Float[Tensor, "floats"],
    where: ValueOffset,
    buffer: Float[Tensor, "floats"],
    dims: Sequence[int],
) -> None:
    """`fill_with_offset_map` of CPU tensors that code of ours has cut: unchecked, no gradient.

    Of a thousand keys the checks take longer than the filling.
    """
    flat = (pos.values, pos.row_splits, where.values, where.inner_row_splits)
    _write(buffer, value, flat, list(dims), False)


def sum_trusted(
    pos: Ragged, grad: Float[Tensor, "buffer"], where: ValueOffset, dims: Sequence[int]
) -> Float[Tensor, "floats"]:
    """`fill_with_offset_map_gradient` of CPU tensors that code of ours has cut: unchecked."""
    flat = (pos.values, pos.row_splits, where.values, where.inner_row_splits)
    return _sum(grad, flat, list(dims))


def finalize_shared_tensor(
    handles: Sequence[SharedBuffer],
    dtype: torch.dtype,
    shape: Sequence[int | None] | None = None,
) -> Tensor:
    """The finished tensor of the one buffer that all `handles` are; it cannot be filled any more.

    Its gradient reaches the values of every part. None in `shape` fits any size.

    >>> finalize_shared_tensor([SharedBuffer.zeros(2)], torch.float32, [None]).tolist()
    [0.0, 0.0]
    """
    handles = list(handles)
    if not handles or not all(isinstance(handle, SharedBuffer) for handle in handles):
        raise InputError("handles must be SharedBuffers, one for each fill, and at least one.")
    if any(handle is not handles[0] for handle in handles):
        raise InputError("handles are different buffers; finalize each with its own handles.")
    tensor = handles[0].tensor
    if tensor.dtype != dtype:
        raise DtypeError(f"the buffer holds {tensor.dtype}, not {dtype}; finalize it as that.")
    if shape is not None:
        wanted = list(shape)
        fits = len(wanted) == tensor.dim() and all(
            want is None or want == have for want, have in zip(wanted, tensor.shape, strict=True)
        )
        if not fits:
            raise InputError(f"the buffer has shape {list(tensor.shape)}, not {wanted}.")
    return handles[0].close()


def _flat(pos: Ragged, where: ValueOffset, dims: Sequence[int]) -> tuple[_Flat, list[int]]:
    if not isinstance(pos, Ragged) or not isinstance(where, ValueOffset):
        raise InputError("pos must be a Ragged, and value_offset a ValueOffset.")
    flat = (pos.values, pos.row_splits, where.values, where.inner_row_splits)
    return flat, widths(dims, pos.row_splits)


def _check(flat: _Flat, name: str, floats: Tensor, dims: list[int], validate: bool) -> _Flat:
    """All keys exist, and all windows lie in `floats`; the tensors, contiguous."""
    keys, row_splits, offsets, inner = flat
    keys = arguments.typed("pos.values", keys, (torch.int64,), (None,))
    arguments.row_splits("pos.row_splits", row_splits, keys.shape[0], validate)
    arguments.together(name, floats, "pos.values", keys)
    arguments.together(name, floats, "value_offset.values", offsets)
    if inner.shape[0] == 0:
        raise InputError("value_offset.inner_row_splits is empty; it is [0] where no key is.")
    flat = (keys, row_splits.contiguous(), offsets.contiguous(), inner.contiguous())
    if not arguments.looks_inside(keys, validate):
        return flat
    if keys.device.type != "cpu":
        _check_plain(flat, name, floats.shape[0], dims)
        return flat
    fault, at = native.check_part(*_addresses(flat, dims), floats.shape[0])
    if fault:
        _refuse(fault, int(keys[at]), at, inner.shape[0] - 1, name)
    return flat


def _refuse(fault: int, key: int, at: int, known: int, name: str) -> None:
    if fault == 1:
        raise InputError(f"pos.values holds {key} at {at}; values must be in [0, {known}).")
    if fault == 2:
        raise InputError(f"value_offset.inner_row_splits are no borders at key {key}.")
    raise InputError(f"value_offset.values has a vector of key {key} outside {name}.")


def _addresses(flat: _Flat, dims: list[int]) -> tuple[int, int, list[int], int, int, int, int]:
    keys, row_splits, offsets, inner = flat
    return (
        keys.data_ptr(),
        row_splits.data_ptr(),
        dims,
        offsets.data_ptr(),
        offsets.shape[0],
        inner.data_ptr(),
        inner.shape[0] - 1,
    )


class _Fill(torch.autograd.Function):
    """Writes in place. What it hands on to the buffer as it was before is the gradient that came,
    without the places written here where an earlier part, or a gradient of the buffer's own, could
    take them for theirs. To leave them in costs nothing, to take them out a copy for every part.
    """

    @staticmethod
    def forward(
        ctx: Any,
        buffer: Tensor,
        value: Tensor,
        flat: _Flat,
        dims: list[int],
        repeats: bool,
        hides: bool,
    ) -> Tensor:
        _write(buffer, value, flat, dims, repeats)
        ctx.mark_dirty(buffer)
        ctx.save_for_backward(*flat)
        ctx.dims, ctx.hides = dims, hides
        return buffer

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  (the decorator's type)
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        flat = ctx.saved_tensors
        for_buffer, for_value = None, None
        if ctx.needs_input_grad[1]:
            for_value = _sum(grad, flat, ctx.dims)
        if ctx.needs_input_grad[0]:
            for_buffer = grad
            if ctx.hides:
                for_buffer = grad.clone(memory_format=torch.contiguous_format)
                zeros = grad.new_zeros(total_values(flat[1], ctx.dims))
                _write(for_buffer, zeros, flat, ctx.dims, True)
        return for_buffer, for_value, None, None, None, None


def _write(buffer: Tensor, value: Tensor, flat: _Flat, dims: list[int], in_order: bool) -> None:
    if buffer.device.type != "cpu":
        fill_with_offset_map_plain(buffer, value, flat, dims)
        return
    size = buffer.element_size()
    native.fill_windows(
        *_addresses(flat, dims), value.data_ptr(), size, buffer.data_ptr(), in_order
    )


def _sum(grad: Tensor, flat: _Flat, dims: list[int]) -> Tensor:
    if grad.device.type != "cpu" or grad.dtype not in arguments.ADDED_BY_CORE:
        return _sum_plain(grad, flat, dims)
    grad = grad.contiguous()
    out = grad.new_empty(total_values(flat[1], dims))
    wide = grad.dtype == torch.float64
    native.sum_windows(*_addresses(flat, dims), grad.data_ptr(), wide, out.data_ptr())
    return out


# ---- by torch's own ops


def _windows(flat: _Flat, dims: list[int]) -> tuple[Tensor, Tensor]:
    """For every value that is copied its place in the buffer, and in the part."""
    keys, row_splits, offsets, inner = flat

    def numbers(n: int) -> Tensor:
        return torch.arange(n, device=keys.device)

    rows = torch.repeat_interleave(numbers(len(dims)), row_splits.diff(), output_size=keys.shape[0])
    width = torch.tensor(dims, dtype=torch.int64, device=keys.device)[rows]
    start = width.cumsum(0) - width
    first = inner[keys]
    count = inner[keys + 1] - first
    entry = torch.repeat_interleave(numbers(keys.shape[0]), count)
    nth = numbers(entry.shape[0]) - (count.cumsum(0) - count)[entry]
    to, source = offsets[first[entry] + nth], start[entry]
    if len(set(dims)) == 1:
        columns = numbers(dims[0])
        return (to[:, None] + columns).flatten(), (source[:, None] + columns).flatten()
    width = width[entry]
    window = torch.repeat_interleave(numbers(entry.shape[0]), width)
    column = numbers(window.shape[0]) - (width.cumsum(0) - width)[window]
    return to[window] + column, source[window] + column


def fill_with_offset_map_plain(buffer: Tensor, value: Tensor, flat: _Flat, dims: list[int]) -> None:
    """`fill_with_offset_map` by torch's own ops, on tensors that were checked."""
    to, source = _windows(flat, dims)
    buffer.index_copy_(0, to, value.index_select(0, source))


def _sum_plain(grad: Tensor, flat: _Flat, dims: list[int]) -> Tensor:
    to, source = _windows(flat, dims)
    wide = arguments.widened(grad)
    out = wide.new_zeros(total_values(flat[1], dims))
    return out.index_add_(0, source, wide.index_select(0, to)).to(grad.dtype)


def _check_plain(flat: _Flat, name: str, floats: int, dims: list[int]) -> None:
    keys, _, offsets, inner = flat
    arguments.in_range("pos.values", keys, inner.shape[0] - 1, True)
    arguments.row_splits("value_offset.inner_row_splits", inner, offsets.shape[0], True)
    arguments.in_range(
        f"value_offset.values, the places in {name},", _windows(flat, dims)[0], floats, True
    )


# ---- the gradient as an op


def _gradient_cpu(
    keys: Tensor,
    row_splits: Tensor,
    grad: Tensor,
    offsets: Tensor,
    inner: Tensor,
    dims: Sequence[int],
    validate: bool = False,
) -> Tensor:
    grad = arguments.typed("grad", grad, arguments.FLOATS, (None,))
    widths_ = widths(dims, row_splits)
    flat = _check((keys, row_splits, offsets, inner), "grad", grad, widths_, validate)
    return _sum(grad, flat, widths_)


def fill_with_offset_map_gradient_plain(
    keys: Tensor,
    row_splits: Tensor,
    grad: Tensor,
    offsets: Tensor,
    inner: Tensor,
    dims: Sequence[int],
    validate: bool = False,
) -> Tensor:
    """`fill_with_offset_map_gradient` by torch's own ops."""
    grad = arguments.typed("grad", grad, arguments.FLOATS, (None,))
    widths_ = widths(dims, row_splits)
    flat = _check((keys, row_splits, offsets, inner), "grad", grad, widths_, validate)
    return _sum_plain(grad, flat, widths_)


def _gradient_shapes(
    keys: Tensor,
    row_splits: Tensor,
    grad: Tensor,
    offsets: Tensor,
    inner: Tensor,
    dims: Sequence[int],
    validate: bool = False,
) -> Tensor:
    return grad.new_empty(unknown_size())


_gradient = register(
    "fill_with_offset_map_gradient(Tensor keys, Tensor row_splits, Tensor grad, Tensor offsets,"
    " Tensor inner_splits, int[] dims, bool validate=False) -> Tensor",
    cpu=_gradient_cpu,
    plain=fill_with_offset_map_gradient_plain,
    shapes=_gradient_shapes,
)
