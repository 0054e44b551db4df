"""The distinct keys of several tables' rows, with the places of every occurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import native
from ..core.errors import InputError
from ..core.ids import Ragged
from . import arguments
from .library import register, unknown_size
from .offsets import ValueOffset, total_values, widths
from .shared_buffer import SharedBuffer

_Found = tuple[Tensor, Tensor, Tensor, Tensor]  # keys, their row_splits, offsets, inner splits


class UniqueKeys(NamedTuple):
    """Distinct keys, where their vectors go, and the buffer for those if one was asked for."""

    unique_key: Ragged
    value_offset: ValueOffset
    value_buffer: SharedBuffer | None


def unique_key_with_value_and_offset(
    key: Ragged, dims: Sequence[int], generate_buffer: bool = True, *, validate: bool = False
) -> UniqueKeys:
    """The distinct keys of each row in first-seen order, and where the vectors of all keys lie.

    The vectors lie one after the other in the order of the keys; one of row r has `dims[r]`
    values. A key in two rows is two keys. The buffer holds zeros.

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


def _check(
    values: Tensor, row_splits: Tensor, dims: Sequence[int], validate: bool
) -> tuple[Tensor, Tensor, list[int]]:
    values = arguments.typed("key.values", values, (torch.int64,), (None,))
    arguments.row_splits("key.row_splits", row_splits, values.shape[0], validate)
    arguments.together("key.values", values, "key.row_splits", row_splits)
    return values, row_splits.contiguous(), widths(dims, row_splits)


def _unique_cpu(
    values: Tensor, row_splits: Tensor, dims: Sequence[int], validate: bool = False
) -> _Found:
    values, row_splits, dims = _check(values, row_splits, dims, validate)
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
    # Shorter in place: their memory had to have room for all keys.
    if distinct < len(keys):  # without the memory of what is not there
        keys, inner = keys[:distinct].clone(), inner[: distinct + 1].clone()
    return keys, splits, offsets, inner


def unique_key_with_offset_plain(
    values: Tensor, row_splits: Tensor, dims: Sequence[int], validate: bool = False
) -> _Found:
    """The same by torch's own ops: keys, their row_splits, offsets, inner row_splits."""
    values, row_splits, dims = _check(values, row_splits, dims, validate)
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
