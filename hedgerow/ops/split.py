"""Splits rows by an index per row, such as the owner's shard, and joins their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import InputError
from ..core.ids import Ragged
from ..core.shapes import Int64
from . import arguments
from .library import register, unknown_size

_BLOCK_ROWS = 16384  # a block with fewer rows is copied before a thread wakes up
_MOST_BLOCKS = 64


def split_by_indices(indices: Int64[Tensor, "n"], tensor: Tensor, num_splits: int) -> list[Tensor]:
    """Returns one tensor per index k, with the rows of `tensor` whose index is k, in input order.

    The indices are checked on every device, because reading the result sizes blocks anyway.

    >>> parts = split_by_indices(torch.tensor([0, 1, 0]), torch.tensor([7.0, 8.0, 9.0]), 2)
    >>> [part.tolist() for part in parts]
    [[7.0, 9.0], [8.0]]
    """
    arguments.one_place(
        indices=arguments.tensor("indices", indices), tensor=arguments.tensor("tensor", tensor)
    )
    return _split(indices, tensor, checks.count("num_splits", num_splits, least=1))


def ragged_split_by_indices(
    indices: Int64[Tensor, "n"], num: Ragged, num_splits: int, *, validate: bool = False
) -> tuple[list[Ragged], list[Ragged]]:
    """Splits the values of ragged rows by index.

    Every result has all rows, with the values of one index.

    The second list holds the positions of those values in `num.values`, in the same rows.

    >>> num = Ragged.from_lists([[4, 3, 2], [1]])
    >>> splits, positions = ragged_split_by_indices(torch.tensor([0, 1, 0, 1]), num, 2)
    >>> [part.to_lists() for part in splits], [part.to_lists() for part in positions]
    ([[[4, 2], []], [[3], [1]]], [[[0, 2], []], [[1], [3]]])
    """
    if not isinstance(num, Ragged):
        raise InputError(f"num is a {type(num).__name__}; pass a Ragged.")
    arguments.tensor("indices", indices)
    arguments.one_place(indices=indices, num=num.values)
    num_splits = checks.count("num_splits", num_splits, least=1)
    values, positions, borders = _ragged_split(
        indices, num.values, num.row_splits, num_splits, validate
    )
    rows = borders.unbind(0)
    return (
        [Ragged.trusted(part, cut) for part, cut in zip(values, rows, strict=True)],
        [Ragged.trusted(part, cut) for part, cut in zip(positions, rows, strict=True)],
    )


@dataclass(frozen=True)
class _Plan:
    """The result of the counting pass: the size of each split, and arguments of the copy passes."""

    sizes: list[int]
    native: tuple[int, int, int, int, int]  # arguments shared by all passes
    held: tuple[Tensor, Tensor]  # tensors kept alive for the addresses


def _plan(indices: Tensor, num_splits: int) -> _Plan:
    n = indices.shape[0]
    blocks = max(1, min(_MOST_BLOCKS, n // max(_BLOCK_ROWS, 8 * num_splits)))
    starts = torch.empty((blocks, num_splits), dtype=torch.int64)
    sizes = torch.empty(num_splits, dtype=torch.int64)
    shared = (indices.data_ptr(), n, num_splits, blocks, starts.data_ptr())
    bad = native.plan_split(*shared, sizes.data_ptr())
    if bad >= 0:
        _refuse(int(indices[bad]), num_splits, bad)
    return _Plan(sizes.tolist(), shared, (indices, starts))


def _refuse(index: int, num_splits: int, at: int | None = None) -> None:
    place = "" if at is None else f" at {at}"
    raise InputError(f"indices holds {index}{place}; values must be in [0, {num_splits}).")


def _check(indices: Tensor, name: str, rows: Tensor, num_splits: int) -> Tensor:
    """Returns `indices`, contiguous, after checking types and lengths."""
    if not isinstance(rows, Tensor) or rows.dim() == 0:
        raise InputError(f"{name} must be a tensor with one row per index.")
    checks.count("num_splits", num_splits, least=1)
    indices = arguments.typed("indices", indices, (torch.int64,), (rows.shape[0],))
    arguments.together("indices", indices, name, rows)
    return indices


def _row_bytes(rows: Tensor) -> int:
    return rows.shape[1:].numel() * rows.element_size()


def _addresses(parts: Sequence[Tensor]) -> list[int]:
    return [part.data_ptr() for part in parts]


# ---- rows of any type


def _split_cpu(indices: Tensor, tensor: Tensor, num_splits: int) -> list[Tensor]:
    indices = _check(indices, "tensor", tensor, num_splits)
    tensor = tensor.contiguous()
    plan = _plan(indices, num_splits)
    parts = [tensor.new_empty((size, *tensor.shape[1:])) for size in plan.sizes]
    native.split_rows(*plan.native, tensor.data_ptr(), _row_bytes(tensor), _addresses(parts))
    return parts


def split_by_indices_plain(indices: Tensor, tensor: Tensor, num_splits: int) -> list[Tensor]:
    """Implements `split_by_indices` with torch's ops."""
    indices = _check(indices, "tensor", tensor, num_splits)
    order, sizes = _sorted(indices, num_splits)
    # The results of an op must not share memory.
    return [tensor.index_select(0, rows) for rows in order.split(sizes)]


def _sorted(indices: Tensor, num_splits: int) -> tuple[Tensor, list[int]]:
    """Returns positions ordered by index, and the number of positions per index.

    Reading the sizes blocks anyway, so the indices are checked on every device.
    """
    ordered, order = indices.sort(stable=True)
    borders = torch.arange(num_splits + 1, device=indices.device)
    ends = torch.searchsorted(ordered, borders).tolist()
    if ends[0] != 0 or ends[-1] != len(ordered):
        _refuse(int(ordered[0 if ends[0] != 0 else -1]), num_splits)
    return order, [b - a for a, b in pairwise(ends)]


def _split_shapes(indices: Tensor, tensor: Tensor, num_splits: int) -> list[Tensor]:
    return [tensor.new_empty((unknown_size(), *tensor.shape[1:])) for _ in range(num_splits)]


def _keep_indices(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _split_backward(ctx: Any, grads: list[Tensor]) -> tuple[None, Tensor, None]:
    return None, _join(ctx.saved_tensors[0], grads), None


# ---- its gradient: every row goes back to where it came from


def _join_cpu(indices: Tensor, grads: list[Tensor]) -> Tensor:
    _check_parts(grads)
    indices = arguments.typed("indices", indices, (torch.int64,), (None,))
    plan = _plan(indices, len(grads))
    _check_sizes(grads, plan.sizes)
    parts = [part.contiguous() for part in grads]
    joined = grads[0].new_empty((indices.shape[0], *grads[0].shape[1:]))
    native.join_rows(*plan.native, _addresses(parts), _row_bytes(joined), joined.data_ptr())
    return joined


def _join_plain(indices: Tensor, grads: list[Tensor]) -> Tensor:
    _check_parts(grads)
    order, sizes = _sorted(indices, len(grads))
    _check_sizes(grads, sizes)
    joined = grads[0].new_empty((indices.shape[0], *grads[0].shape[1:]))
    return joined.index_copy_(0, order, torch.cat(grads))


def _check_parts(grads: Sequence[Tensor]) -> None:
    if not grads:
        raise InputError("there are no splits to join; pass at least 1.")
    for part in grads:
        if part.dtype != grads[0].dtype or part.shape[1:] != grads[0].shape[1:]:
            raise InputError("the splits to join differ in their type or width.")


def _check_sizes(grads: Sequence[Tensor], sizes: list[int]) -> None:
    given = [part.shape[0] for part in grads]
    if given != sizes:
        raise InputError(f"the splits to join have {given} rows; their indices say {sizes}.")


def _join_shapes(indices: Tensor, grads: list[Tensor]) -> Tensor:
    return grads[0].new_empty((indices.shape[0], *grads[0].shape[1:]))


def _keep_count(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.num_splits = len(inputs[1])


def _join_backward(ctx: Any, grad: Tensor) -> tuple[None, list[Tensor]]:
    return None, _split(ctx.saved_tensors[0], grad, ctx.num_splits)


# ---- ragged rows


def _ragged_split_cpu(
    indices: Tensor, values: Tensor, row_splits: Tensor, num_splits: int, validate: bool = False
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    indices, values, row_splits = _check_ragged(indices, values, row_splits, num_splits, validate)
    plan = _plan(indices, num_splits)
    parts, positions = ([values.new_empty(size) for size in plan.sizes] for _ in range(2))
    borders = row_splits.new_empty((num_splits, row_splits.shape[0]))
    native.split_ragged(
        *plan.native,
        values.data_ptr(),
        row_splits.data_ptr(),
        row_splits.shape[0] - 1,
        _addresses(parts),
        _addresses(positions),
        borders.data_ptr(),
    )
    return parts, positions, borders


def ragged_split_by_indices_plain(
    indices: Tensor, values: Tensor, row_splits: Tensor, num_splits: int, validate: bool = False
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Implements `ragged_split_by_indices` with torch's ops.

    Returns values, positions and row splits.
    """
    indices, values, row_splits = _check_ragged(indices, values, row_splits, num_splits, validate)
    order, sizes = _sorted(indices, num_splits)
    places = [part.clone() for part in order.split(sizes)]
    borders = [torch.searchsorted(part, row_splits) for part in places]
    return [values.index_select(0, part) for part in places], places, torch.stack(borders)


def _check_ragged(
    indices: Tensor, values: Tensor, row_splits: Tensor, num_splits: int, validate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    values = arguments.typed("num.values", values, (torch.int64,), (None,))
    indices = _check(indices, "num", values, num_splits)
    arguments.row_splits("num.row_splits", row_splits, values.shape[0], validate)
    return indices, values, row_splits.contiguous()


def _ragged_split_shapes(
    indices: Tensor, values: Tensor, row_splits: Tensor, num_splits: int, validate: bool = False
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    sizes = [unknown_size() for _ in range(num_splits)]
    return (
        [values.new_empty(size) for size in sizes],
        [values.new_empty(size) for size in sizes],
        row_splits.new_empty((num_splits, row_splits.shape[0])),
    )


_split = register(
    "split_by_indices(Tensor indices, Tensor tensor, int num_splits) -> Tensor[]",
    cpu=_split_cpu,
    plain=split_by_indices_plain,
    shapes=_split_shapes,
    backward=_split_backward,
    keep=_keep_indices,
)
_join = register(
    "split_by_indices_backward(Tensor indices, Tensor[] grads) -> Tensor",
    cpu=_join_cpu,
    plain=_join_plain,
    shapes=_join_shapes,
    backward=_join_backward,
    keep=_keep_count,
)
_ragged_split = register(
    "ragged_split_by_indices(Tensor indices, Tensor values, Tensor row_splits, int num_splits,"
    " bool validate=False) -> (Tensor[], Tensor[], Tensor)",
    cpu=_ragged_split_cpu,
    plain=ragged_split_by_indices_plain,
    shapes=_ragged_split_shapes,
)
