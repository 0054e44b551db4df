"""Sums vectors by row, where the vectors of a row are contiguous, and computes row splits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ..core import checks
from ..core.errors import DtypeError, InputError
from ..core.ids import Ragged
from ..core.shapes import Float, Int64
from . import arguments
from .library import register
from .reduce import check_widths, cut_columns, or_zeros, sum_at, wide


def fused_sorted_segment_sum(
    indices: Sequence[Int64[Tensor, "n"]],
    values: Sequence[Float[Tensor, "n ..."]],
    shapes: Sequence[Sequence[int] | Tensor],
    *,
    validate: bool = False,
) -> list[Float[Tensor, "rows ..."]]:
    """Returns per list zeros of `shapes[i]` with row j of `values[i]` added at `indices[i][j]`.

    Indices must not decrease. `shapes[i]` is the complete shape of result i.

    >>> at, values = torch.tensor([0, 0, 2]), torch.tensor([[1.0], [2.0], [4.0]])
    >>> fused_sorted_segment_sum([at], [values], [[4, 1]])[0].tolist()
    [[3.0], [0.0], [4.0], [0.0]]
    """
    at, vectors = arguments.tensors("indices", indices), arguments.tensors("values", values)
    sizes = _lists("shapes", shapes)
    _equally_many("indices", at, values=vectors, shapes=sizes)
    if not sizes:
        return []
    arguments.beside("indices[0]", at[0], "indices", at)
    arguments.beside("indices[0]", at[0], "values", vectors)
    flat = [size for shape in sizes for size in shape]
    ranks = [len(shape) for shape in sizes]
    return _SEGMENT_SUM(at, vectors, flat, ranks, validate)


def fused_reduce_and_split(
    splits: Sequence[Int64[Tensor, "rows+1"]],
    embeddings: Sequence[Float[Tensor, "n dim"]],
    slice_dims: Sequence[Sequence[int]],
    *,
    validate: bool = False,
) -> list[Float[Tensor, "rows width"]]:
    """Returns, for each table, the sums of its rows with the columns split into slices.

    The slices of table 0 come first, then those of table 1, and so on.

    >>> splits, vectors = torch.tensor([0, 2, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> [part.tolist() for part in fused_reduce_and_split([splits], [vectors], [[1, 1]])]
    [[[4.0], [0.0]], [[6.0], [0.0]]]
    """
    borders, vectors = (
        arguments.tensors("splits", splits),
        arguments.tensors("embeddings", embeddings),
    )
    dims = _lists("slice_dims", slice_dims)
    _equally_many("splits", borders, embeddings=vectors, slice_dims=dims)
    if not borders:
        return []
    arguments.beside("splits[0]", borders[0], "splits", borders)
    arguments.beside("splits[0]", borders[0], "embeddings", vectors)
    flat = [width for widths in dims for width in widths]
    counts = [len(widths) for widths in dims]
    return _REDUCE_AND_SPLIT(borders, vectors, flat, counts, validate)


fused_reduce_and_split_gpu = fused_reduce_and_split  # Monolith's name


def normalize_merged_split(
    row_split: Int64[Tensor, "n"], row_split_size: Tensor, *, validate: bool = False
) -> Int64[Tensor, "rows+1"]:
    """Returns the row splits of concatenated parts, from the row splits of each part.

    `row_split_size` is the number of splits of each part.

    >>> borders = torch.tensor([0, 2, 5, 0, 1])
    >>> normalize_merged_split(borders, torch.tensor([3, 2])).tolist()
    [0, 2, 5, 6]
    """
    arguments.tensor("row_split", row_split)
    arguments.tensor("row_split_size", row_split_size)
    arguments.together("row_split", row_split, "row_split_size", row_split_size)
    return _NORMALIZE(row_split, row_split_size, validate)


def fused_value_rowids(ragged: Ragged) -> Int64[Tensor, "n"]:
    """Returns the row of each value. It is computed once; later calls return the same tensor.

    >>> fused_value_rowids(Ragged.from_lists([[], [7], [8, 9]])).tolist()
    [1, 2, 2]
    """
    check_ragged("ragged", ragged)
    if "row_ids" not in vars(ragged):
        arguments.row_splits("row_splits", ragged.row_splits, ragged.values.shape[0])
    return ragged.row_ids


def check_ragged(name: str, value: object) -> None:
    """Raises `DtypeError` unless `value` is a Ragged."""
    if not isinstance(value, Ragged):
        raise DtypeError(
            f"{name} is a {type(value).__name__}; pass a Ragged(values, row_splits), "
            f"or Ragged.from_lists([[...], ...])."
        )


def ragged_sum(row_splits: Int64[Tensor, "rows+1"], values: Float[Tensor, "n dim"]) -> Tensor:
    """Returns the sum of each row. Uses `embedding_bag`, which needs one pass over the values."""
    added = wide(values)
    if 0 in added.shape or row_splits.shape[0] == 1:
        return values.new_zeros((row_splits.shape[0] - 1, *values.shape[1:]))
    places = torch.arange(added.shape[0], device=added.device)
    bags = embedding_bag(places, added, row_splits, mode="sum", include_last_offset=True)
    return bags.to(values.dtype)


def ragged_rows(
    row_splits: Int64[Tensor, "rows+1"], per_row: Tensor, count: int
) -> Float[Tensor, "n ..."]:
    """Returns each row's entry of `per_row`, repeated for each of its values."""
    return torch.repeat_interleave(per_row, row_splits.diff(), dim=0, output_size=count)


def _lists(name: str, values: Sequence[Sequence[int] | Tensor]) -> list[list[int]]:
    return [
        arguments.wholes(f"{name}[{i}]", one)
        for i, one in enumerate(arguments.listed(name, values))
    ]


def _equally_many(first: str, one: Sequence[Any], **others: Sequence[Any]) -> None:
    for name, other in others.items():
        if len(other) != len(one):
            raise InputError(
                f"{name} has {len(other)} entries, {first} {len(one)}; they must be equally many."
            )


def _cut(flat: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """Returns lists of lists from a flat list and lengths; torch's schemas lack nested lists."""
    return [list(flat[a:b]) for a, b in pairwise(accumulate(counts, initial=0))]


def _check_segment(at: int, index: Tensor, value: Tensor, shape: list[int], validate: bool) -> None:
    name = f"indices[{at}]"
    arguments.typed(name, index, arguments.WHOLE, (None,))
    rest = (None,) * (value.dim() - 1)
    arguments.typed(f"values[{at}]", value, arguments.FLOATS, (index.shape[0], *rest))
    arguments.together(f"values[{at}]", value, name, index)
    for size in shape:
        checks.count(f"shapes[{at}]", size)
    if not shape or tuple(shape[1:]) != tuple(value.shape[1:]):
        raise InputError(
            f"shapes[{at}] is {shape} for values of shape {tuple(value.shape)}; it must be "
            f"(rows, {', '.join(map(str, value.shape[1:]))})."
        )
    arguments.in_range(name, index, shape[0], validate)
    if arguments.looks_inside(index, validate) and bool((index[1:] < index[:-1]).any()):
        raise InputError(f"{name} falls somewhere; sort it, and its values with it.")


def _segments(
    indices: list[Tensor],
    values: list[Tensor],
    shapes: list[int],
    ranks: list[int],
    validate: bool,
) -> list[tuple[Tensor, Tensor, list[int]]]:
    """Returns the checked indices, values and shape of each list."""
    _equally_many("indices", indices, values=values, shapes=ranks)
    found = list(zip(indices, values, _cut(shapes, ranks), strict=True))
    for at, (index, value, shape) in enumerate(found):
        _check_segment(at, index, value, shape, validate)
    return found


def segment_sum_plain(*given: Any) -> list[Tensor]:
    """Implements `fused_sorted_segment_sum` with torch's ops."""
    return [sum_at(index, value, shape[0]) for index, value, shape in _segments(*given)]


def segment_sum_by_kernel(*given: Any) -> list[Tensor]:
    """Implements `fused_sorted_segment_sum` on a device. Each segment is summed in order."""
    from ..kernels.segments import sum_segments

    found = []
    for index, value, shape in _segments(*given):
        numbers = torch.arange(shape[0] + 1, dtype=index.dtype, device=index.device)
        splits = torch.searchsorted(index.contiguous(), numbers)
        width = value.shape[1:].numel()
        flat = value.contiguous().view(value.shape[0], width)
        found.append(sum_segments(splits, flat).view(shape))
    return found


def _segment_sum_shapes(
    indices: list[Tensor],
    values: list[Tensor],
    shapes: list[int],
    ranks: list[int],
    validate: bool,
) -> list[Tensor]:
    cut = _cut(shapes, ranks)
    return [value.new_empty(shape) for value, shape in zip(values, cut, strict=True)]


def _segment_sum_keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*inputs[0])
    ctx.like = _like(output)


def _segment_sum_backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    indices = ctx.saved_tensors
    found = [
        grad.index_select(0, index)
        for grad, index in zip(or_zeros(grads, ctx.like), indices, strict=True)
    ]
    return [None] * len(indices), found, None, None, None


def _like(output: list[Tensor]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(part.shape, part.dtype, part.device) for part in output]


_SEGMENT_SUM = register(
    "fused_sorted_segment_sum(Tensor[] indices, Tensor[] values, SymInt[] shapes, int[] ranks, "
    "bool validate) -> Tensor[]",
    cpu=segment_sum_plain,
    plain=segment_sum_plain,
    device=segment_sum_by_kernel,
    shapes=_segment_sum_shapes,
    backward=_segment_sum_backward,
    keep=_segment_sum_keep,
)


def _tables(
    splits: list[Tensor],
    embeddings: list[Tensor],
    widths: list[int],
    counts: list[int],
    validate: bool,
) -> list[tuple[Tensor, Tensor, list[int]]]:
    """Returns the checked row splits, vectors and slice widths of each table."""
    _equally_many("splits", splits, embeddings=embeddings, slice_dims=counts)
    cut = _cut(widths, counts)
    for at, (borders, vectors) in enumerate(zip(splits, embeddings, strict=True)):
        arguments.typed(f"embeddings[{at}]", vectors, arguments.FLOATS, (None, None))
        arguments.row_splits(f"splits[{at}]", borders, vectors.shape[0], validate)
        arguments.together(f"embeddings[{at}]", vectors, f"splits[{at}]", borders)
        check_widths(f"slice_dims[{at}]", cut[at], vectors.shape[1])
        if borders.shape != splits[0].shape:
            raise InputError(
                f"splits[{at}] has {borders.shape[0] - 1} rows, splits[0] "
                f"{splits[0].shape[0] - 1}; all tables have the rows of one batch."
            )
    return list(zip(splits, embeddings, cut, strict=True))


def reduce_and_split_plain(*given: Any) -> list[Tensor]:
    """Implements `fused_reduce_and_split` with torch's ops."""
    return [
        part
        for borders, vectors, parts in _tables(*given)
        for part in cut_columns(ragged_sum(borders, vectors), parts)
    ]


def reduce_and_split_by_kernel(*given: Any) -> list[Tensor]:
    """Implements `fused_reduce_and_split` on a device, with one launch per slice."""
    from ..kernels.segments import sum_segments

    return [
        sum_segments(borders.contiguous(), vectors.contiguous(), start, stop - start)
        for borders, vectors, parts in _tables(*given)
        for start, stop in pairwise(accumulate(parts, initial=0))
    ]


def _reduce_and_split_shapes(
    splits: list[Tensor],
    embeddings: list[Tensor],
    widths: list[int],
    counts: list[int],
    validate: bool,
) -> list[Tensor]:
    cut, rows = _cut(widths, counts), splits[0].shape[0] - 1
    return [
        vectors.new_empty((rows, width))
        for vectors, parts in zip(embeddings, cut, strict=True)
        for width in parts
    ]


def _reduce_and_split_keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    splits, embeddings, _, counts, _ = inputs
    ctx.save_for_backward(*splits)
    ctx.rows = [vectors.shape[0] for vectors in embeddings]
    ctx.counts, ctx.like = counts, _like(output)
    ctx.empty = [(vectors.shape, vectors.dtype, vectors.device) for vectors in embeddings]


def _reduce_and_split_backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    parts, found = or_zeros(grads, ctx.like), []
    ends = list(accumulate(ctx.counts, initial=0))
    for at, (borders, count) in enumerate(zip(ctx.saved_tensors, ctx.rows, strict=True)):
        mine = parts[ends[at] : ends[at + 1]]
        if mine:
            found.append(ragged_rows(borders, torch.cat(mine, dim=1), count))
        else:  # vectors without columns have no slices
            found += or_zeros([None], [ctx.empty[at]])
    return [None] * len(found), found, None, None, None


_REDUCE_AND_SPLIT = register(
    "fused_reduce_and_split(Tensor[] splits, Tensor[] embeddings, SymInt[] widths, int[] counts, "
    "bool validate) -> Tensor[]",
    cpu=reduce_and_split_plain,
    plain=reduce_and_split_plain,
    device=reduce_and_split_by_kernel,
    shapes=_reduce_and_split_shapes,
    backward=_reduce_and_split_backward,
    keep=_reduce_and_split_keep,
)


def _check_parts(row_split: Tensor, sizes: Tensor, validate: bool) -> None:
    """Raises unless sizes are at least 1 and add up, and each part starts at 0 and never falls."""
    if not arguments.looks_inside(sizes, validate):
        return
    if sizes.numel() and int(sizes.min()) < 1:
        raise InputError(
            f"row_split_size holds {int(sizes.min())}; a part without rows has one border, [0]."
        )
    if int(sizes.sum()) != row_split.shape[0]:
        raise InputError(
            f"row_split_size adds up to {int(sizes.sum())}; row_split has {row_split.shape[0]}."
        )
    is_first = torch.zeros_like(row_split, dtype=torch.bool)
    is_first[sizes.cumsum(0) - sizes] = True
    wrong = torch.where(is_first, row_split != 0, row_split < row_split.roll(1))
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise InputError(
            f"row_split is {int(row_split[at])} at {at}; each part begins with 0 and never falls."
        )


def _normalize(row_split: Tensor, row_split_size: Tensor, validate: bool) -> Tensor:
    arguments.typed("row_split", row_split, (torch.int64,), (None,))
    arguments.typed("row_split_size", row_split_size, arguments.WHOLE, (None,))
    arguments.together("row_split", row_split, "row_split_size", row_split_size)
    sizes, borders = row_split_size.long(), row_split.shape[0]
    if sizes.shape[0] > borders:
        raise InputError(
            f"row_split_size has {sizes.shape[0]} parts, row_split {borders} borders; "
            f"a part has at least one."
        )
    _check_parts(row_split, sizes, validate)
    joined = row_split.new_zeros(borders + 1 - sizes.shape[0])
    if not borders:
        return joined
    ends = sizes.cumsum(0)
    values = row_split[ends - 1]  # the last split of each part
    part = torch.repeat_interleave(
        torch.arange(sizes.shape[0], device=sizes.device), sizes, output_size=borders
    )
    before = (values.cumsum(0) - values)[part]
    # The first split of a part overwrites the last split of the previous part with an equal value.
    joined[torch.arange(borders, device=part.device) - part] = row_split + before
    return joined


def _normalize_shape(row_split: Tensor, row_split_size: Tensor, validate: bool) -> Tensor:
    return row_split.new_empty(row_split.shape[0] + 1 - row_split_size.shape[0])


_NORMALIZE = register(
    "normalize_merged_split(Tensor row_split, Tensor row_split_size, bool validate) -> Tensor",
    cpu=_normalize,
    plain=_normalize,
    shapes=_normalize_shape,
)
