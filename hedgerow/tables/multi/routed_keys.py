"""Keys of several tables sorted by the shard that owns them, and the return of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, cycle, pairwise
from operator import mul

import torch
from torch import Tensor

from ... import native
from ...core.ids import Ragged
from ...core.shapes import Float32, Int64
from ...ops.fused_gather import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
)
from ...ops.reorder import fused_reorder_by_indices
from ...ops.split import ragged_split_by_indices
from ...routing.router import Router
from ..store import TableKeys

_MOST_KEYS = 2**31 - 1  # positions are 32-bit
_SPLIT_BLOCK = 16384  # fewer keys are split by one thread
_MOST_BLOCKS = 64


@dataclass(frozen=True, eq=False)
class RoutedKeys:
    """Keys of K tables for R owners, ordered by owner and then by table.

    The rows of `ids` come back in the same order, as one flat tensor. `places` holds the position
    in `ids` of each packed key.
    """

    ids: Int64[Tensor, "u"]
    slot_sizes: Int64[Tensor, "R * K"]  # the number of ids per owner and table, in host memory
    places: Tensor  # int32 or int64 [n]
    splits: tuple[int, ...]  # the offsets of the tables in the packed keys
    dims: tuple[int, ...]
    dim: int  # columns of all tables; 0 if they differ
    floats: int  # the number of values in the rows of `ids`
    is_plain: bool = False  # whether `ids` are the packed keys, unchanged

    @property
    def shard_sizes(self) -> list[int]:
        """The number of ids for each owner."""
        return self.slot_sizes.view(-1, len(self.dims)).sum(1).tolist()

    @property
    def offset_sizes(self) -> list[int]:
        """The number of packed keys of each table."""
        return [stop - start for start, stop in pairwise(self.splits)]

    @cached_property  # an update reuses what its lookup computed
    def offsets(self) -> Tensor:
        """The offset of each packed key's row in the rows of `ids`."""
        if self.dim:
            reach = len(self.ids) * self.dim > _MOST_KEYS
            return (self.places.long() if reach else self.places) * self.dim
        ranks, device = len(self.slot_sizes) // len(self.dims), self.ids.device
        widths = torch.tensor(self.dims * ranks)
        # Rows of a cell are contiguous; a cell starts where the cells before it end.
        ids, floats = self.slot_sizes, self.slot_sizes * widths
        first = (floats.cumsum(0) - floats) - (ids.cumsum(0) - ids) * widths
        cells = torch.arange(len(widths)).repeat_interleave(self.slot_sizes).to(device)
        places = torch.arange(len(self.ids), device=device)
        starts = first.to(device)[cells] + places * widths.to(device)[cells]
        return starts[self.places]

    def part(self, places: Tensor, splits: tuple[int, ...]) -> RoutedKeys:
        """Returns the same `ids` for some of the packed keys, given by their `places`.

        Ids that none of these keys has get sums of zeros and no occurrences.
        """
        return replace(self, places=places, splits=splits, is_plain=False)

    def unpack(
        self, rows: Float32[Tensor, "floats"], out: Float32[Tensor, "packed_floats"]
    ) -> None:
        """Writes the row of every packed key, flat, to `out`, from the rows of `ids`."""
        if self.dim:
            dim = self.dim
            torch.index_select(rows.view(-1, dim), 0, self.places, out=out.view(-1, dim))
            return
        offsets = self.offsets.split(self.offset_sizes)
        found = fused_gather_embeddings_by_input(rows, offsets, self.dims)
        torch.cat([part.view(-1) for part in found], out=out)

    def sum_gradients(self, grads: Float32[Tensor, "packed_floats"]) -> Float32[Tensor, "floats"]:
        """Returns the gradients of `ids`: in-order sums of the gradients of equal keys."""
        if self.dim and grads.is_cpu:  # all tables have the same width
            offsets, grads = self.offsets, grads.contiguous()
            sums = grads.new_empty(self.floats)
            native.add_windows(
                [offsets.data_ptr()],
                [len(offsets)],
                [self.dim],
                offsets.element_size(),
                sums.element_size(),
                [grads.data_ptr()],
                1.0,
                sums.data_ptr(),
                len(sums),
            )
            return sums
        return fused_gather_embeddings_by_input_gradient(
            self.floats, self._by_table(grads), self.offsets.split(self.offset_sizes), self.dims
        )

    def in_order(self, rows: Float32[Tensor, "packed_floats"]) -> Float32[Tensor, "floats"]:
        """Returns rows of the packed keys in the order of `ids`; only if duplicates were kept."""
        tables = len(self.dims)
        by_table = self._by_table(rows)
        cells = self.places.argsort().split(self.slot_sizes.tolist())
        parts = [
            by_table[i % tables].index_select(0, cell - self.splits[i % tables]).view(-1)
            for i, cell in enumerate(cells)
        ]
        return torch.cat(parts)

    def occurrences(self, counts: Int64[Tensor, "n"] | None = None) -> Int64[Tensor, "u"]:
        """Returns how often each of `ids` was packed; `counts` holds occurrences of packed keys."""
        if counts is None:
            return torch.bincount(self.places, minlength=len(self.ids))
        return torch.zeros_like(self.ids).index_add_(0, self.places, counts)

    def _by_table(self, flat: Tensor) -> list[Tensor]:
        sizes = [n * dim for n, dim in zip(self.offset_sizes, self.dims, strict=True)]
        parts = flat.split(sizes)
        return [part.view(-1, dim) for part, dim in zip(parts, self.dims, strict=True)]


class KeyRouter:
    """Sorts keys by the owners that each table's router gives.

    >>> keys = TableKeys(torch.tensor([4, 0, 2, 2, 3, 2, 4]), (0, 4, 7))
    >>> packed = KeyRouter((1, 2), [Router("roundrobin", 2)] * 2).pack(keys)
    >>> packed.ids.tolist(), packed.shard_sizes, packed.slot_sizes.tolist()
    ([4, 0, 2, 2, 4, 3], [5, 1], [3, 2, 0, 1])
    >>> packed.offsets.tolist()
    [0, 1, 2, 2, 7, 3, 5]
    """

    def __init__(self, dims: Sequence[int], routers: Sequence[Router]) -> None:
        self.dims, self.routers = tuple(dims), tuple(routers)
        self.shards = self.routers[0].shards
        self._dim = self.dims[0] if len(set(self.dims)) == 1 else 0
        self._ones = [1] * len(self.dims)  # with rows of one column, offsets are positions
        # The core's parameters per router; one entry if all tables have the same router.
        alike = all(router == self.routers[0] for router in self.routers)
        self._rules = [
            (router.code, *router.numbers(), router.bounds or ())
            for router in (self.routers[:1] if alike else self.routers)
        ]
        first = self.routers[0]
        self._by_modulo = alike and first.dist_type == "roundrobin" and first.bounds is None
        self._rank0_empty = first.rank0_empty

    def pack(self, keys: TableKeys, *, dedup: bool = True) -> RoutedKeys:
        """Packs the keys.

        With `dedup`, equal ids of a table are packed once, in order of first occurrence.
        """
        plain = False
        if dedup and keys.ids.is_cpu and len(keys.ids) <= _MOST_KEYS:
            ids, sizes, places = self._pack_here(keys)
            plain = self.shards == 1 and len(ids) == len(places)
        else:
            ids, sizes, places = self._pack_anywhere(keys, dedup)
        if self._dim:
            floats = len(ids) * self._dim
        else:
            floats = sum(map(mul, sizes.tolist(), cycle(self.dims)))
        return RoutedKeys(ids, sizes, places, keys.splits, self.dims, self._dim, floats, plain)

    def _pack_anywhere(self, keys: TableKeys, dedup: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Returns ids, sizes and places, computed on the keys' device."""
        found, number = _distinct(keys) if dedup else (_all(keys), None)
        if self.shards == 1:
            sizes, ids, place = found.row_splits.diff(), found.values, None
        else:
            sizes, ids, place = _by_owner(found, self.routers)
        sizes = sizes.cpu()
        if place is None:
            place = torch.arange(len(ids), device=ids.device) if number is None else number
        elif number is not None:
            place = place[number]
        return ids, sizes, place

    def _pack_here(self, keys: TableKeys) -> tuple[Tensor, Tensor, Tensor]:
        """Returns ids, sizes and places of distinct keys in host memory, computed by the core."""
        by_modulo = self._by_modulo or self.shards == 1
        shards = self.shards if by_modulo else 1
        at, splits = keys.ids.data_ptr(), keys.splits
        addresses, lengths = list[int](), list[int]()
        for start, stop in pairwise(splits):
            addresses.append(at + 8 * start)
            lengths.append(stop - start)
        ids = torch.empty_like(keys.ids)
        sizes = torch.empty(shards * (1 + len(self.dims)), dtype=torch.int32, device="cpu")
        places = torch.empty(len(ids), dtype=torch.int32, device="cpu")
        distinct, _ = native.fused_reorder(
            addresses,
            lengths,
            self._ones,
            shards,
            by_modulo and self._rank0_empty,
            ids.data_ptr(),
            sizes.data_ptr(),  # sizes of shards, then of tables inside shards
            sizes.data_ptr() + 4 * shards,
            places.data_ptr(),
        )
        if distinct < len(ids):
            ids = ids[:distinct].clone()
        slot_sizes = sizes[shards:].long()
        if not by_modulo:
            ids, slot_sizes, order = self._split(ids, slot_sizes)
            place = torch.empty(distinct, dtype=torch.int32, device="cpu")
            place[order] = torch.arange(distinct, dtype=torch.int32, device="cpu")
            places = place.index_select(0, places)
        return ids, slot_sizes, places

    def _split(self, ids: Tensor, table_sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the keys by owner, the sizes per owner and table, and each key's old position."""
        n, tables, shards = len(ids), len(self.dims), self.shards
        row_splits = torch.zeros(tables + 1, dtype=torch.int64, device="cpu")
        row_splits[1:] = table_sizes.cumsum(0)
        owners, parts, order = ids.new_empty(3, n)
        borders = row_splits.tolist() if len(self._rules) > 1 else [0, n]
        for rule, (start, stop) in zip(self._rules, pairwise(borders), strict=True):
            first = 8 * start
            native.route(ids.data_ptr() + first, stop - start, *rule, owners.data_ptr() + first, 0)
        blocks = max(1, min(_MOST_BLOCKS, n // max(_SPLIT_BLOCK, 8 * shards)))
        starts = torch.empty((blocks, shards), dtype=torch.int64, device="cpu")
        sizes = torch.empty(shards, dtype=torch.int64, device="cpu")
        shared = owners.data_ptr(), n, shards, blocks, starts.data_ptr()
        native.plan_split(*shared, sizes.data_ptr())
        parts_at, order_at = [parts.data_ptr()], [order.data_ptr()]
        for size in sizes.tolist()[:-1]:
            parts_at.append(parts_at[-1] + 8 * size)
            order_at.append(order_at[-1] + 8 * size)
        of_owners = torch.empty((shards, tables + 1), dtype=torch.int64, device="cpu")
        native.split_ragged(
            *shared,
            ids.data_ptr(),
            row_splits.data_ptr(),
            tables,
            parts_at,
            order_at,
            of_owners.data_ptr(),
        )
        return parts, of_owners.diff(dim=1).view(-1), order


def _all(keys: TableKeys) -> Ragged:
    return Ragged.trusted(keys.ids, torch.tensor(keys.splits, device=keys.ids.device))


def _distinct(keys: TableKeys) -> tuple[Ragged, Tensor]:
    """Returns the distinct ids of each table, and the position of each id among them."""
    tables = [keys.ids_of(k) for k in range(keys.tables)]
    ones = [1] * keys.tables  # for a single shard, offsets are then positions
    found = fused_reorder_by_indices(tables, 1, ones)
    sizes = splits_of(found.sharded_slot_sizes.tolist())
    splits = torch.tensor(sizes, device=keys.ids.device)
    return Ragged.trusted(found.output, splits), found.fused_embedding_offsets


def _by_owner(found: Ragged, routers: Sequence[Router]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the sizes per owner and table, the sorted ids, and each id's new position."""
    borders = pairwise(found.row_splits.tolist())
    owners = [
        router.owners(found.values[start:stop])
        for router, (start, stop) in zip(routers, borders, strict=True)
    ]
    parts, order = ragged_split_by_indices(torch.cat(owners), found, routers[0].shards)
    place = torch.empty_like(found.values)
    place[torch.cat([part.values for part in order])] = torch.arange(
        len(place), device=place.device
    )
    sizes = torch.stack([part.row_splits.diff() for part in parts]).view(-1)
    return sizes, torch.cat([part.values for part in parts]), place


def splits_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the offsets of consecutive parts of these sizes, from 0 to the end.

    >>> splits_of([2, 0, 1])
    (0, 2, 2, 3)
    """
    return (0, *accumulate(sizes))
