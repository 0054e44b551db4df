"""Distinct keys of several tables with the positions of occurrences, and buffers filled by them.

Filling writes in place, so it is not a registered op. Its gradient is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import native
from ..core.errors import DtypeError, InputError
from ..core.ids import Ragged
from ..core.shapes import Float, Int64
from ..ops import arguments
from ..ops.library import register, unknown_size


@dataclass(frozen=True, slots=True, eq=False)
class ValueOffset:
    """Offsets by row, distinct key and occurrence, as three flat tensors.

    Distinct key u, counted over all rows, has the offsets from `inner_row_splits[u]` up to
    `inner_row_splits[u + 1]`. Row r has the distinct keys from `outer_row_splits[r]` up to
    `outer_row_splits[r + 1]`. Vectors of different keys do not overlap.

    >>> at = ValueOffset(torch.tensor([0, 4, 2]), torch.tensor([0, 2]), torch.tensor([0, 2, 3]))
    >>> at.to_lists()
    [[[0, 4], [2]]]
    """

    values: Int64[Tensor, "n"]
    outer_row_splits: Int64[Tensor, "rows+1"]
    inner_row_splits: Int64[Tensor, "keys+1"]

    def __post_init__(self) -> None:
        for name in ("values", "outer_row_splits", "inner_row_splits"):
            tensor = arguments.typed(f"value_offset.{name}", getattr(self, name), _INT64, (None,))
            arguments.together("value_offset.values", self.values, f"value_offset.{name}", tensor)

    def to_lists(self) -> list[list[list[int]]]:
        """Returns the offsets as nested lists."""
        values, outer, inner = (
            part.tolist() for part in (self.values, self.outer_row_splits, self.inner_row_splits)
        )
        keys = [values[a:b] for a, b in pairwise(inner)]
        return [keys[a:b] for a, b in pairwise(outer)]


_INT64 = (torch.int64,)
_MOST = 2**31  # values per vector, so that no sum of lengths exceeds 64 bits


def widths(dims: Sequence[int], row_splits: Tensor) -> list[int]:
    """Returns `dims` as ints. Raises unless there is one per row.

    >>> widths([2, 3], torch.tensor([0, 1]))
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: dims has 2 widths for 1 rows; pass one per row.
    """
    rows = row_splits.shape[0] - 1
    if len(dims) != rows:
        raise InputError(f"dims has {len(dims)} widths for {rows} rows; pass one per row.")
    for dim in dims:
        if isinstance(dim, bool) or not isinstance(dim, int) or not 0 <= dim < _MOST:
            raise InputError(f"dims holds {dim!r}; a width is an int in [0, {_MOST}).")
    return list(dims)


def total_values(row_splits: Tensor, dims: Sequence[int]) -> int:
    """Returns the number of values of all rows, `dims[r]` per entry of row r.

    Blocks on a device.
    """
    lengths = row_splits.diff()
    return int((lengths * torch.tensor(dims, dtype=torch.int64, device=lengths.device)).sum())


class SharedBuffer:
    """Owns a tensor until `close` returns it. Not thread-safe.

    The tensor is filled in place. Gradients flow to the values of every part.

    >>> buffer = SharedBuffer.zeros(3)
    >>> buffer.tensor.tolist(), buffer.closed
    ([0.0, 0.0, 0.0], False)
    """

    __slots__ = ("_keeps_base", "_map", "_seen", "_tensor")

    def __init__(self, tensor: Float[Tensor, "floats"]) -> None:
        arguments.typed("tensor", tensor, arguments.FLOATS, (None,))
        if not tensor.is_contiguous():
            raise InputError("tensor is not contiguous; a buffer is filled in place: pass a copy.")
        if tensor.is_neg():
            raise InputError("tensor is a lazily negated view; pass tensor.resolve_neg().")
        base = tensor._base
        if tensor.requires_grad and (tensor.is_leaf or (base is not None and base.is_leaf)):
            raise InputError(
                "tensor is a leaf that requires a gradient, or a view of one, which cannot be "
                "filled in place; pass tensor.clone()."
            )
        self._tensor: Tensor | None = tensor
        self._keeps_base = tensor.requires_grad
        self._map: ValueOffset | None = None
        self._seen: Tensor | None = None

    @classmethod
    def zeros(
        cls,
        floats: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> SharedBuffer:
        """Returns a buffer of `floats` zeros."""
        return cls(torch.zeros(floats, dtype=dtype, device=device))

    @property
    def tensor(self) -> Float[Tensor, "floats"]:
        """The tensor with the parts filled so far."""
        if self._tensor is None:
            raise InputError("the buffer was finalized; fill and finalize another one.")
        return self._tensor

    @property
    def closed(self) -> bool:
        """Whether `close` has returned the tensor."""
        return self._tensor is None

    def close(self) -> Float[Tensor, "floats"]:
        """Returns the tensor. Nothing can be filled after that."""
        tensor = self.tensor
        self._tensor = self._map = self._seen = None
        return tensor

    def overlaps(self, keys: Tensor, where: ValueOffset) -> bool:
        """Returns whether a part may write what an earlier part wrote, or one key twice.

        Records the keys.

        Known only on the CPU with a single map of offsets; otherwise returns True.
        """
        if self.tensor.device.type != "cpu":
            return True
        if self._map is None:
            self._map = where
            self._seen = torch.zeros(where.inner_row_splits.shape[0] - 1, dtype=torch.uint8)
        if self._seen is None or not _same(self._map, where):
            self._seen = None
            return True
        return native.mark_keys(keys.data_ptr(), keys.shape[0], self._seen.data_ptr())

    @property
    def keeps_base(self) -> bool:
        """Whether the tensor had a gradient before the first part."""
        return self._keeps_base


def _same(one: ValueOffset, other: ValueOffset) -> bool:
    return one.values is other.values and one.inner_row_splits is other.inner_row_splits


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
    """Copies every vector of `value` to all positions of its key, and returns the same buffer.

    `pos` holds the distinct keys (numbers over all rows) of the vectors, in order. A vector of row
    r has `dims[r]` values. Several parts with different keys may fill one buffer. Differentiable in
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
    """Returns the gradient of a part's `value`: per vector, the sum over all positions of its key.

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
    """Like `fill_with_offset_map`, for CPU tensors that Hedgerow made: no checks and no gradient.

    For a thousand keys the checks would take longer than the filling.
    """
    flat = (pos.values, pos.row_splits, where.values, where.inner_row_splits)
    _write(buffer, value, flat, list(dims), False)


def sum_trusted(
    pos: Ragged, grad: Float[Tensor, "buffer"], where: ValueOffset, dims: Sequence[int]
) -> Float[Tensor, "floats"]:
    """Like `fill_with_offset_map_gradient`, for CPU tensors that Hedgerow made: no checks."""
    flat = (pos.values, pos.row_splits, where.values, where.inner_row_splits)
    return _sum(grad, flat, list(dims))


def finalize_shared_tensor(
    handles: Sequence[SharedBuffer],
    dtype: torch.dtype,
    shape: Sequence[int | None] | None = None,
) -> Tensor:
    """Returns the finished tensor of a buffer, which cannot be filled any more.

    All `handles` must be the same buffer. Gradients flow to the values of every part. None in
    `shape` matches any size.

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
    """Raises unless all keys exist and all windows lie in `floats`.

    Returns the tensors, contiguous.
    """
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
    """Fills a buffer in place.

    The gradient of the previous buffer is the incoming gradient. With `hides`, the positions
    written here are set to zero in it, because an earlier part or the buffer's own gradient could
    otherwise use them. That costs a copy per part, so it is done only where needed.
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
    """Returns, for every copied value, its position in the buffer and in the part."""
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
    """Implements `fill_with_offset_map` with torch's ops, on checked tensors."""
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
    """Implements `fill_with_offset_map_gradient` with torch's ops."""
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


_Found = tuple[Tensor, Tensor, Tensor, Tensor]  # keys, their row_splits, offsets, inner splits


class UniqueKeys(NamedTuple):
    """Distinct keys, the positions of their vectors, and optionally a buffer for these."""

    unique_key: Ragged
    value_offset: ValueOffset
    value_buffer: SharedBuffer | None


def unique_key_with_value_and_offset(
    key: Ragged, dims: Sequence[int], generate_buffer: bool = True, *, validate: bool = False
) -> UniqueKeys:
    """Returns each row's distinct keys in first-seen order, and the offsets of all keys' vectors.

    The vectors are contiguous in the order of the keys; a vector of row r has `dims[r]` values.
    Equal keys in two rows count as two keys. The buffer holds zeros.

    >>> found = unique_key_with_value_and_offset(Ragged.from_lists([[0, 1, 0], [0]]), [2, 3])
    >>> found.unique_key.to_lists(), found.value_offset.to_lists()
    ([[0, 1], [0]], [[[0, 4], [2]], [[6]]])
    >>> found.value_buffer.tensor.shape
    torch.Size([9])
    """
    if not isinstance(key, Ragged):
        raise InputError(f"key is a {type(key).__name__}; pass a Ragged.")
    dims = widths(dims, key.row_splits)
    keys, splits, offsets, inner = _unique(key.values, key.row_splits, dims, validate)
    buffer = None
    if generate_buffer:
        buffer = SharedBuffer.zeros(total_values(key.row_splits, dims), device=keys.device)
    return UniqueKeys(Ragged.trusted(keys, splits), ValueOffset(offsets, splits, inner), buffer)


def _check_unique(
    values: Tensor, row_splits: Tensor, dims: Sequence[int], validate: bool
) -> tuple[Tensor, Tensor, list[int]]:
    values = arguments.typed("key.values", values, (torch.int64,), (None,))
    arguments.row_splits("key.row_splits", row_splits, values.shape[0], validate)
    arguments.together("key.values", values, "key.row_splits", row_splits)
    return values, row_splits.contiguous(), widths(dims, row_splits)


def _unique_cpu(
    values: Tensor, row_splits: Tensor, dims: Sequence[int], validate: bool = False
) -> _Found:
    values, row_splits, dims = _check_unique(values, row_splits, dims, validate)
    n = values.shape[0]
    keys, offsets = torch.empty_like(values), torch.empty_like(values)
    splits, inner = torch.empty_like(row_splits), values.new_empty(n + 1)
    distinct = native.unique_with_offsets(
        values.data_ptr(),
        row_splits.data_ptr(),
        dims,
        keys.data_ptr(),
        splits.data_ptr(),
        offsets.data_ptr(),
        inner.data_ptr(),
    )
    # The outputs had to be large enough for all keys. Copy them if they are shorter.
    if distinct < len(keys):  # frees the unused memory
        keys, inner = keys[:distinct].clone(), inner[: distinct + 1].clone()
    return keys, splits, offsets, inner


def unique_key_with_offset_plain(
    values: Tensor, row_splits: Tensor, dims: Sequence[int], validate: bool = False
) -> _Found:
    """Does the same with torch's ops. Returns keys, their row_splits, offsets, inner row_splits."""
    values, row_splits, dims = _check_unique(values, row_splits, dims, validate)
    n, device = values.shape[0], values.device
    rows = torch.repeat_interleave(
        torch.arange(len(dims), device=device), row_splits.diff(), output_size=n
    )
    kinds, kind = torch.unique(values, return_inverse=True)
    _, group, counts = torch.unique(
        rows * kinds.shape[0] + kind, return_inverse=True, return_counts=True
    )
    places = torch.arange(n, device=device)
    first = places.new_full(counts.shape, n).scatter_reduce(0, group, places, "amin")
    first, order = first.sort()
    number = torch.empty_like(order)
    number[order] = torch.arange(order.shape[0], device=device)
    each = torch.tensor(dims, dtype=torch.int64, device=device)[rows]
    offsets = (each.cumsum(0) - each)[number[group].argsort(stable=True)]
    inner = torch.cat([counts.new_zeros(1), counts[order].cumsum(0)])
    return values[first], torch.searchsorted(first, row_splits), offsets, inner


def _unique_shapes(
    values: Tensor, row_splits: Tensor, dims: Sequence[int], validate: bool = False
) -> _Found:
    distinct = unknown_size()
    return (
        values.new_empty(distinct),
        torch.empty_like(row_splits),
        torch.empty_like(values),
        values.new_empty(distinct + 1),
    )


_unique = register(
    "unique_key_with_offset(Tensor values, Tensor row_splits, int[] dims, bool validate=False)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    cpu=_unique_cpu,
    plain=unique_key_with_offset_plain,
    shapes=_unique_shapes,
)
