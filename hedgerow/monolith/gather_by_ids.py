"""Vectors of ids from tables that list their ids, their gradients, and the shards of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..core.errors import InputError
from ..core.hashing import fid_v1_to_v2, make_fid, signature_of, slot_of
from ..core.shapes import Float, Int64
from ..ops.arguments import (
    ADDED_BY_CORE,
    FLOATS,
    in_range,
    looks_inside,
    one_place,
    tensor,
    tensors,
    together,
    typed,
    widened,
)
from ..ops.library import register
from ..routing.router import Router


def map_id_to_embedding(
    ids: Sequence[Int64[Tensor, "k"]],
    embeddings: Sequence[Float[Tensor, "k d"]],
    input: Int64[Tensor, "..."],
    use_multi_threads: bool = True,
    *,
    validate: bool = False,
) -> Float[Tensor, "... d"]:
    """Returns the vector of each id of `input`, from the table whose `ids` list it.

    If an id is listed more than once, the first occurrence is used and gets the gradient.

    >>> ids = [torch.tensor([7]), torch.tensor([-2, 5])]
    >>> embeddings = [torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]])]
    >>> map_id_to_embedding(ids, embeddings, torch.tensor([[5], [7]])).tolist()
    [[[3.0]], [[1.0]]]
    """
    lists, tables = tensors("ids", ids), tensors("embeddings", embeddings)
    one_place(input=tensor("input", input), ids=lists, embeddings=tables)
    return _map(lists, tables, tensor("input", input), use_multi_threads, validate)[0]


def map_id_to_embedding_gradient_back_prop(
    ids: Sequence[Int64[Tensor, "k"]],
    input: Int64[Tensor, "..."],
    grads: Float[Tensor, "... d"],
    *,
    validate: bool = False,
) -> list[Float[Tensor, "k d"]]:
    """Returns the gradient of `map_id_to_embedding` for its embeddings: `grads` summed by row.

    >>> ids, input = [torch.tensor([7]), torch.tensor([-2, 5])], torch.tensor([5, 7, 5])
    >>> [g.tolist() for g in map_id_to_embedding_gradient_back_prop(ids, input, torch.ones(3, 1))]
    [[[1.0]], [[0.0], [2.0]]]
    """
    one_place(input=tensor("input", input), grads=tensor("grads", grads))
    numbers = find_rows(ids, input, validate=validate)
    return _add(grads, numbers, [len(one) for one in ids], True, validate)


def gather_embeddings_by_input(
    ids: Int64[Tensor, "k"],
    embeddings: Float[Tensor, "k d"],
    input: Int64[Tensor, "..."],
    use_multi_threads: bool = False,
    *,
    validate: bool = False,
) -> tuple[Float[Tensor, "... d"], Int64[Tensor, "..."]]:
    """Returns the vector of each id of `input` from one table, and the index of its row.

    If an id is listed more than once, its first row is used.

    >>> ids, embeddings = torch.tensor([1, 2, 3]), torch.tensor([[0.5], [1.5], [2.5]])
    >>> output, rows = gather_embeddings_by_input(ids, embeddings, torch.tensor([1, 3, 2, 3]))
    >>> output.flatten().tolist(), rows.tolist()
    ([0.5, 2.5, 1.5, 2.5], [0, 2, 1, 2])
    """
    lists, tables = tensors("ids", [ids]), tensors("embeddings", [embeddings])
    one_place(input=tensor("input", input), ids=lists, embeddings=tables)
    return _map(lists, tables, tensor("input", input), use_multi_threads, validate)


def gather_embeddings_by_ids_gradient_back_prop(
    ids: Int64[Tensor, "k"],
    grads: Float[Tensor, "... d"],
    index_mapping: Int64[Tensor, "..."],
    *,
    validate: bool = False,
) -> Float[Tensor, "k d"]:
    """Returns the gradient of `gather_embeddings_by_input` for embeddings: `grads` summed by row.

    >>> ids, rows = torch.tensor([1, 2, 3]), torch.tensor([0, 2, 1, 2])
    >>> gather_embeddings_by_ids_gradient_back_prop(ids, torch.ones(4, 1), rows).flatten().tolist()
    [1.0, 1.0, 2.0]
    """
    typed("ids", ids, (torch.int64,), (None,))
    numbers = tensor("index_mapping", index_mapping)
    one_place(ids=ids, grads=tensor("grads", grads), index_mapping=numbers)
    return _add(grads, numbers, [len(ids)], True, validate)[0]


def find_rows(
    ids: Sequence[Int64[Tensor, "k"]],
    input: Int64[Tensor, "..."],
    use_multi_threads: bool = True,
    *,
    validate: bool = False,
) -> Int64[Tensor, "..."]:
    """Returns the first index of each id of `input` in the concatenation of all `ids`.

    >>> find_rows([torch.tensor([7]), torch.tensor([-2, 5])], torch.tensor([5, 7])).tolist()
    [2, 0]
    """
    lists = tensors("ids", ids)
    one_place(input=tensor("input", input), ids=lists)
    return _find(lists, input, use_multi_threads, validate)


# ---- finding


def _listed(ids: Sequence[Tensor], input: Tensor) -> tuple[list[Tensor], Tensor]:
    if not ids:
        raise InputError("ids is empty; pass one list of ids at least.")
    queries = typed("input", input, (torch.int64,), (None,) * input.dim())
    lists = [typed(f"ids[{i}]", one, (torch.int64,), (None,)) for i, one in enumerate(ids)]
    for i, one in enumerate(lists):
        together("input", queries, f"ids[{i}]", one)
    total = sum(len(one) for one in lists)
    if total >= 2**31:
        raise InputError(f"ids lists {total} ids; pass fewer than {2**31}.")
    return lists, queries


def _unknown(query: int) -> InputError:
    return InputError(f"input holds {query}, which is not among the ids; list every id of it.")


def _find_cpu(ids: Sequence[Tensor], input: Tensor, many: bool, validate: bool) -> Tensor:
    lists, queries = _listed(ids, input)
    numbers = torch.empty_like(queries)
    missing = native.find_rows(
        [one.data_ptr() for one in lists],
        [len(one) for one in lists],
        queries.data_ptr(),
        queries.numel(),
        many,
        numbers.data_ptr(),
    )
    if missing >= 0:
        raise _unknown(int(queries.flatten()[missing]))
    return numbers


def find_rows_plain(ids: Sequence[Tensor], input: Tensor, many: bool, validate: bool) -> Tensor:
    """Implements `find_rows` with torch's ops: a stable sort and a binary search."""
    lists, queries = _listed(ids, input)
    ordered, order = torch.cat(lists).sort(stable=True)
    if not len(ordered):
        if queries.numel():
            raise _unknown(int(queries.flatten()[0]))
        return torch.empty_like(queries)
    at = torch.searchsorted(ordered, queries).clamp_(max=len(ordered) - 1)
    if looks_inside(queries, validate):
        absent = ordered[at] != queries
        if bool(absent.any()):
            raise _unknown(int(queries[absent][0]))
    return order[at]


def _find_shapes(ids: Sequence[Tensor], input: Tensor, many: bool, validate: bool) -> Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


_find = register(
    "find_rows(Tensor[] ids, Tensor input, bool use_multi_threads, bool validate) -> Tensor",
    cpu=_find_cpu,
    plain=find_rows_plain,
    shapes=_find_shapes,
)


# ---- vectors


def _tables(
    ids: Sequence[Tensor], embeddings: Sequence[Tensor], input: Tensor
) -> list[Float[Tensor, "k d"]]:
    if len(ids) != len(embeddings) or not ids:
        raise InputError(
            f"{len(ids)} lists of ids and {len(embeddings)} of embeddings; pass as many of one as "
            f"of the other, and at least one."
        )
    tables = []
    for i, (one, rows) in enumerate(zip(ids, embeddings, strict=True)):
        dim, dtypes = (tables[0].shape[1], (tables[0].dtype,)) if tables else (None, FLOATS)
        typed(f"ids[{i}]", one, (torch.int64,), (None,))
        tables.append(typed(f"embeddings[{i}]", rows, dtypes, (one.shape[0], dim)))
        together("input", input, f"embeddings[{i}]", rows)
    return tables


def _map_cpu(
    ids: Sequence[Tensor], embeddings: Sequence[Tensor], input: Tensor, many: bool, validate: bool
) -> tuple[Tensor, Tensor]:
    tables = _tables(ids, embeddings, input)
    numbers = _find_cpu(ids, input, many, validate)
    dim = tables[0].shape[1]
    output = tables[0].new_empty((*numbers.shape, dim))
    native.copy_rows(
        [rows.data_ptr() for rows in tables],
        [len(rows) for rows in tables],
        dim * output.element_size(),
        numbers.data_ptr(),
        numbers.numel(),
        many,
        output.data_ptr(),
    )
    return output, numbers


def map_id_to_embedding_plain(
    ids: Sequence[Tensor], embeddings: Sequence[Tensor], input: Tensor, many: bool, validate: bool
) -> tuple[Tensor, Tensor]:
    """Implements `map_id_to_embedding` with torch's ops. Also returns the row numbers."""
    tables = _tables(ids, embeddings, input)
    numbers = find_rows_plain(ids, input, many, validate)
    rows = tables[0] if len(tables) == 1 else torch.cat(tables)
    # The explicit shape also works for an empty table, whose input is empty too.
    return rows.index_select(0, numbers.flatten()).view(*numbers.shape, rows.shape[1]), numbers


def _map_shapes(
    ids: Sequence[Tensor], embeddings: Sequence[Tensor], input: Tensor, many: bool, validate: bool
) -> tuple[Tensor, Tensor]:
    output = embeddings[0].new_empty((*input.shape, embeddings[0].shape[1]))
    return output, _find_shapes(ids, input, many, validate)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ids, _, _, ctx.many, _ = inputs
    ctx.lengths = [one.shape[0] for one in ids]
    ctx.save_for_backward(output[1])


def _map_backward(ctx: Any, grad: Tensor, _: object) -> tuple[Any, ...]:
    (numbers,) = ctx.saved_tensors
    found = _add(grad, numbers, ctx.lengths, ctx.many, False)
    return [None] * len(ctx.lengths), found, None, None, None


_map = register(
    "map_id_to_embedding(Tensor[] ids, Tensor[] embeddings, Tensor input, bool use_multi_threads, "
    "bool validate) -> (Tensor, Tensor)",
    cpu=_map_cpu,
    plain=map_id_to_embedding_plain,
    shapes=_map_shapes,
    backward=_map_backward,
    keep=_keep,
)


# ---- gradients


def _numbered(
    grads: Tensor, numbers: Tensor, lengths: Sequence[int], validate: bool
) -> tuple[Tensor, Tensor]:
    numbers = typed("index_mapping", numbers, (torch.int64,), (None,) * numbers.dim())
    rows = typed("grads", grads, FLOATS, (*numbers.shape, None))
    together("grads", rows, "the ids", numbers)
    in_range("index_mapping", numbers, sum(lengths), validate)
    return rows.reshape(numbers.numel(), rows.shape[-1]), numbers.reshape(-1)


def _add_cpu(
    grads: Tensor, numbers: Tensor, lengths: Sequence[int], many: bool, validate: bool
) -> list[Tensor]:
    if grads.dtype not in ADDED_BY_CORE:
        return map_gradient_plain(grads, numbers, lengths, many, validate)
    grads, numbers = _numbered(grads, numbers, lengths, validate)
    dim = grads.shape[1]
    sums = [grads.new_empty((length, dim)) for length in lengths]
    native.add_rows(
        [rows.data_ptr() for rows in sums],
        lengths,
        dim,
        grads.element_size(),
        numbers.data_ptr(),
        numbers.numel(),
        many,
        grads.data_ptr(),
    )
    return sums


def map_gradient_plain(
    grads: Tensor, numbers: Tensor, lengths: Sequence[int], many: bool, validate: bool
) -> list[Tensor]:
    """Sums `grads` by row number with torch's ops, split into lists of rows."""
    grads, numbers = _numbered(grads, numbers, lengths, validate)
    wide = widened(grads)
    sums = wide.new_zeros((sum(lengths), wide.shape[1])).index_add_(0, numbers, wide)
    sums = sums.to(grads.dtype)
    return [sums] if len(lengths) == 1 else [part.clone() for part in sums.split(list(lengths))]


def _add_shapes(
    grads: Tensor, numbers: Tensor, lengths: Sequence[int], many: bool, validate: bool
) -> list[Tensor]:
    return [grads.new_empty((length, grads.shape[-1])) for length in lengths]


def _keep_added(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    grads, numbers, ctx.lengths, _, _ = inputs
    ctx.shape = grads.shape
    ctx.save_for_backward(numbers)


def _add_backward(ctx: Any, grads: Sequence[Tensor]) -> tuple[Any, ...]:
    (numbers,) = ctx.saved_tensors
    rows = torch.cat(list(grads)).index_select(0, numbers.reshape(-1))
    return rows.view(ctx.shape), None, None, None, None


_add = register(
    "map_id_to_embedding_gradient(Tensor grads, Tensor numbers, SymInt[] lengths, "
    "bool use_multi_threads, bool validate) -> Tensor[]",
    cpu=_add_cpu,
    plain=map_gradient_plain,
    shapes=_add_shapes,
    backward=_add_backward,
    keep=_keep_added,
)


def shard_of(
    ids: Int64[Tensor, "n"], num_shards: int, rank0_empty: bool = False
) -> Int64[Tensor, "n"]:
    """Returns the shard of each id: its 64 bits as an unsigned number, modulo the number of shards.

    With `rank0_empty` shard 0 owns no ids.

    >>> import torch
    >>> shard_of(torch.tensor([9, 10, -1]), 10).tolist()
    [9, 0, 5]
    """
    return Router("roundrobin", num_shards, rank0_empty=rank0_empty).owners(
        tensor("ids", ids).contiguous()
    )


__all__ = ["fid_v1_to_v2", "make_fid", "shard_of", "signature_of", "slot_of"]
