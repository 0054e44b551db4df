"""Removes duplicate ids and orders the others by shard, for an exchange between all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import InputError
from ..core.ids import narrowest
from ..core.shapes import Int64
from ..routing.router import Router
from .arguments import FLOATS, WHOLE, in_range, tensor, tensors, together, typed
from .library import register, unknown_size

_LIMIT = 2**31  # offsets and positions are 32-bit
_KINDS = {torch.int64: 0, torch.float32: 1, torch.float64: 2}  # numbers of key types in the core


class Reordered(NamedTuple):
    """The result of `fused_reorder_by_indices` for M slots and S shards."""

    output: Tensor  # int64 [U]: by shard, then by slot, in order of first occurrence
    shard_sizes: Tensor  # int32 [S]: ids of each shard
    sharded_slot_sizes: Tensor  # int32 [S*M]: ids of each slot of each shard
    emb_offset_sizes: Tensor  # int32 [M]: lengths of the inputs
    fused_embedding_offsets: Tensor  # int32 [sum of lengths]: offset of each id's vector


def reorder_by_indices(
    input: Tensor, shard_ids: Tensor, num_of_shards: int, *, validate: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns the distinct rows ordered by shard, and the number of rows of each shard (int32).

    `input` is int64 [n], or float [n, d] with the key in the first column. Of equal keys the first
    is kept, with its shard. Inside a shard the last occurrence comes first. -0 equals 0; NaN equals
    nothing.

    >>> ids, shards = torch.tensor([0, 1, 2, 2, 3, 5]), torch.tensor([0, 1, 2, 2, 0, 2])
    >>> output, sizes = reorder_by_indices(ids, shards, 3)
    >>> output.tolist(), sizes.tolist()
    ([3, 0, 1, 5, 2], [2, 1, 2])
    """
    shards = checks.count("num_of_shards", num_of_shards, least=1)
    return _reorder(tensor("input", input), tensor("shard_ids", shard_ids), shards, validate)


def _rows(
    input: Tensor, shard_ids: Tensor, num_of_shards: int, validate: bool
) -> tuple[Tensor, Tensor]:
    shape = (None,) if input.dtype == torch.int64 else (None, None)
    rows = typed("input", input, (torch.int64, *FLOATS), shape)
    shards = typed("shard_ids", shard_ids, WHOLE, (rows.shape[0],))
    together("input", rows, "shard_ids", shards)
    checks.count("num_of_shards", num_of_shards, least=1)
    if rows.dim() == 2 and rows.shape[1] == 0:
        raise InputError("input has rows without a column; the first column is their key.")
    if rows.shape[0] >= _LIMIT:
        raise InputError(f"input has {rows.shape[0]} rows; pass fewer than {_LIMIT} at a time.")
    in_range("shard_ids", shards, num_of_shards, validate)
    return rows, shards.to(torch.int32)


def _reorder_cpu(
    input: Tensor, shard_ids: Tensor, num_of_shards: int, validate: bool
) -> tuple[Tensor, Tensor]:
    rows, shards = _rows(input, shard_ids, num_of_shards, validate)
    n = rows.shape[0]
    # Half types compare as float32, which holds all their values.
    keys = rows if rows.dtype in _KINDS else rows[:, 0].float()
    row_bytes = rows.shape[1:].numel() * rows.element_size()  # a single row may have any stride
    # Capacity for all rows: memory that is never written is not allocated by the system.
    output = torch.empty_like(rows)
    sizes = torch.empty(num_of_shards, dtype=torch.int32)
    kept = native.reorder(
        keys.data_ptr(),
        _KINDS[keys.dtype],
        row_bytes if keys is rows else keys.element_size(),
        rows.data_ptr(),
        row_bytes,
        n,
        shards.data_ptr(),
        num_of_shards,
        output.data_ptr(),
        sizes.data_ptr(),
    )
    return output if kept == n else output[:kept].clone(), sizes


def reorder_by_indices_plain(
    input: Tensor, shard_ids: Tensor, num_of_shards: int, validate: bool
) -> tuple[Tensor, Tensor]:
    """Implements `reorder_by_indices` with torch's ops: sorts by key, then by shard."""
    rows, shards = _rows(input, shard_ids, num_of_shards, validate)
    keys = rows if rows.dim() == 1 else rows[:, 0] + 0.0  # -0 becomes 0
    _, first, _ = _distinct(keys)
    shard = shards[first].long()
    n = rows.shape[0]
    order = first[(shard * n + (n - 1 - first)).argsort()]
    sizes = torch.bincount(shard, minlength=num_of_shards)
    return rows[order], sizes.to(torch.int32)


def _distinct(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns distinct keys, the first position of each, and each input key's index in them."""
    ordered, order = keys.sort(stable=True)
    new = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    number = torch.empty_like(order)
    number[order] = new.cumsum(0) - 1
    return ordered[new], order[new], number


def _reorder_shapes(
    input: Tensor, shard_ids: Tensor, num_of_shards: int, validate: bool
) -> tuple[Tensor, Tensor]:
    output = input.new_empty((unknown_size(), *input.shape[1:]))
    return output, input.new_empty(num_of_shards, dtype=torch.int32)


_reorder = register(
    "reorder_by_indices(Tensor input, Tensor shard_ids, int num_of_shards, bool validate)"
    " -> (Tensor, Tensor)",
    cpu=_reorder_cpu,
    plain=reorder_by_indices_plain,
    shapes=_reorder_shapes,
)


def fused_reorder_by_indices(
    inputs: Sequence[Int64[Tensor, "n"]],
    num_of_shards: int,
    dim_sizes: Sequence[int],
    rank0_empty: bool = False,
) -> Reordered:
    """Returns the distinct ids of each slot ordered by shard, and the offset of each id's vector.

    Ids are routed by `shard_of`. Offsets refer to a flat tensor that holds one vector per entry of
    `output`, as wide as its slot. On a device this blocks, because the number of distinct ids is
    the size of a result.

    >>> inputs = [torch.tensor([0, 1, 0]), torch.tensor([3, 2, 3]), torch.tensor([5, 6, 7])]
    >>> made = fused_reorder_by_indices(inputs, 2, [1, 2, 3])
    >>> made.output.tolist(), made.shard_sizes.tolist(), made.sharded_slot_sizes.tolist()
    ([0, 2, 6, 1, 3, 5, 7], [3, 4], [1, 1, 1, 1, 1, 2])
    >>> made.fused_embedding_offsets.tolist()
    [0, 6, 0, 7, 1, 7, 9, 3, 12]
    """
    slots = tensors("inputs", inputs)
    if not slots:
        raise InputError("inputs is empty; pass the ids of one slot at least.")
    dims = [checks.count("dim_sizes", dim) for dim in dim_sizes]
    shards = checks.count("num_of_shards", num_of_shards, least=1)
    return Reordered(*_fused_reorder(slots, shards, dims, rank0_empty))


def _slots(
    inputs: Sequence[Tensor], num_of_shards: int, dim_sizes: Sequence[int], rank0_empty: bool
) -> list[Tensor]:
    Router("roundrobin", num_of_shards, rank0_empty=rank0_empty)
    if len(dim_sizes) != len(inputs):
        raise InputError(f"{len(dim_sizes)} dim_sizes for {len(inputs)} inputs; pass one for each.")
    for dim in dim_sizes:
        checks.count("dim_sizes", dim)
    slots = [typed(f"inputs[{m}]", ids, (torch.int64,), (None,)) for m, ids in enumerate(inputs)]
    for m, ids in enumerate(slots):
        together("inputs[0]", slots[0], f"inputs[{m}]", ids)
    if sum(len(ids) for ids in slots) >= _LIMIT:
        raise InputError(f"inputs hold {_LIMIT} ids or more; pass fewer at a time.")
    return slots


def _check_values(ids: int, values: int) -> None:
    if values >= _LIMIT:
        many = str(values) if values < 2**63 else "2**63 or more"
        raise InputError(
            f"the vectors of {ids} ids have {many} values; 32-bit offsets reach fewer than "
            f"{_LIMIT}: pass fewer ids at a time or smaller dim_sizes."
        )


def _fused_reorder_cpu(
    inputs: Sequence[Tensor], num_of_shards: int, dim_sizes: Sequence[int], rank0_empty: bool
) -> tuple[Tensor, ...]:
    slots = _slots(inputs, num_of_shards, dim_sizes, rank0_empty)
    lengths = [len(ids) for ids in slots]
    # Capacity for all ids: memory that is never written is not allocated by the system.
    output = torch.empty(sum(lengths), dtype=torch.int64)
    shard_sizes = torch.empty(num_of_shards, dtype=torch.int32)
    slot_sizes = torch.empty(num_of_shards * len(slots), dtype=torch.int32)
    offsets = torch.empty(sum(lengths), dtype=torch.int32)
    ids, values = native.fused_reorder(
        [ids.data_ptr() for ids in slots],
        lengths,
        dim_sizes,
        num_of_shards,
        rank0_empty,
        output.data_ptr(),
        shard_sizes.data_ptr(),
        slot_sizes.data_ptr(),
        offsets.data_ptr(),
    )
    _check_values(ids, values)
    sizes = torch.tensor(lengths, dtype=torch.int32)
    kept = output if ids == len(output) else output[:ids].clone()
    return kept, shard_sizes, slot_sizes, sizes, offsets


def fused_reorder_by_indices_plain(
    inputs: Sequence[Tensor], num_of_shards: int, dim_sizes: Sequence[int], rank0_empty: bool
) -> tuple[Tensor, ...]:
    """Implements `fused_reorder_by_indices` with torch's ops: sorts each slot by id, then shard."""
    slots = _slots(inputs, num_of_shards, dim_sizes, rank0_empty)
    device = slots[0].device
    found = [_distinct(ids) for ids in slots]
    total = sum(len(ids) for ids, _, _ in found)
    dims = zip(found, dim_sizes, strict=True)
    _check_values(total, sum(len(ids) * dim for (ids, _, _), dim in dims))
    rule = Router("roundrobin", num_of_shards, rank0_empty=rank0_empty)
    owners = [rule.places_by_torch(ids)[0] for ids, _, _ in found]
    sizes = torch.stack([torch.bincount(own, minlength=num_of_shards) for own in owners], 1)
    id_starts = _starts(sizes)
    value_starts = _starts(sizes * torch.tensor(dim_sizes, device=device))
    output = torch.empty(total, dtype=torch.int64, device=device)
    offsets = []
    for m, ((ids, first, number), own) in enumerate(zip(found, owners, strict=True)):
        order = (own * len(slots[m]) + first).argsort()  # by shard, in order of first occurrence
        shard = own[order]
        in_shard = torch.arange(len(ids), device=device) - _starts(sizes[:, m])[shard]
        output[id_starts[shard, m] + in_shard] = ids[order]
        offset = torch.empty_like(own)
        offset[order] = value_starts[shard, m] + in_shard * dim_sizes[m]
        offsets.append(offset[number])
    return (
        output,
        sizes.sum(1, dtype=torch.int32),
        sizes.flatten().to(torch.int32),
        torch.tensor([len(ids) for ids in slots], dtype=torch.int32, device=device),
        torch.cat(offsets).to(torch.int32),
    )


def fused_reorder_on_device(
    inputs: Sequence[Tensor], num_of_shards: int, dim_sizes: Sequence[int], rank0_empty: bool
) -> tuple[Tensor, ...]:
    """Implements `fused_reorder_by_indices` for all slots at once by sorting. It blocks once."""
    slots = _slots(inputs, num_of_shards, dim_sizes, rank0_empty)
    lengths, device = [len(ids) for ids in slots], slots[0].device
    if sum(lengths) * max(dim_sizes) >= _LIMIT or not sum(lengths):
        return fused_reorder_by_indices_plain(inputs, num_of_shards, dim_sizes, rank0_empty)
    told = torch.tensor([lengths, dim_sizes]).to(device, non_blocking=True)
    ids = torch.cat(slots)
    numbers = torch.arange(len(slots), dtype=narrowest(len(slots)), device=device)
    slot = torch.repeat_interleave(numbers, told[0], output_size=len(ids))
    order = ids.argsort(stable=True)
    order = order[slot[order].argsort(stable=True)]  # by slot, then id, in input order
    ordered, new = ids[order], torch.ones_like(ids, dtype=torch.bool)
    new[1:] = (ordered[1:] != ordered[:-1]) | (slot[order][1:] != slot[order][:-1])
    group = torch.empty_like(order)
    group[order] = new.cumsum(0) - 1
    first = torch.zeros_like(new).index_put_((order,), new)  # the first occurrence of each id
    places = first.nonzero().flatten()  # blocks: the count is the size of a result
    rule = Router("roundrobin", num_of_shards, rank0_empty=rank0_empty)
    owners, own_slot = rule.places_by_torch(ids[places])[0], slot[places].long()
    cells = owners * len(slots) + own_slot
    sizes = torch.zeros(num_of_shards * len(slots), dtype=torch.int64, device=device)
    sizes.index_add_(0, cells, torch.ones_like(cells))
    # Slots are concatenated, so inside a shard the first slot comes first.
    by_shard = owners.to(narrowest(num_of_shards)).argsort(stable=True)
    cell, width = cells[by_shard], told[1][own_slot[by_shard]]
    in_cell = torch.arange(len(cell), device=device) - _starts(sizes)[cell]
    start = torch.empty_like(cell)
    start[by_shard] = _starts(sizes * told[1].repeat(num_of_shards))[cell] + in_cell * width
    # From an id to its group, to the group's first occurrence, to the offset of its vector.
    group_place = torch.empty_like(places)
    group_place[group[places]] = torch.arange(len(places), device=device)
    by_shard_sizes = sizes.view(num_of_shards, -1).sum(1, dtype=torch.int32)
    offsets = start[group_place[group]].to(torch.int32)
    return (
        ids[places][by_shard],
        by_shard_sizes,
        sizes.to(torch.int32),
        told[0].to(torch.int32),
        offsets,
    )


def _starts(sizes: Tensor) -> Tensor:
    """Returns the start of each part when they are concatenated."""
    flat = sizes.flatten()
    return (flat.cumsum(0) - flat).view_as(sizes)


def _fused_reorder_shapes(
    inputs: Sequence[Tensor], num_of_shards: int, dim_sizes: Sequence[int], rank0_empty: bool
) -> tuple[Tensor, ...]:
    def whole(size: int) -> Tensor:
        return inputs[0].new_empty(size, dtype=torch.int32)

    return (
        inputs[0].new_empty(unknown_size()),
        whole(num_of_shards),
        whole(num_of_shards * len(inputs)),
        whole(len(inputs)),
        whole(sum(ids.shape[0] for ids in inputs)),
    )


_fused_reorder = register(
    "fused_reorder_by_indices(Tensor[] inputs, int num_of_shards, int[] dim_sizes, "
    "bool rank0_empty) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu=_fused_reorder_cpu,
    plain=fused_reorder_by_indices_plain,
    device=fused_reorder_on_device,
    shapes=_fused_reorder_shapes,
)
