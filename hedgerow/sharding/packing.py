"""Lays the ids of several tables out for their owners, and says where each row will arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ..core.ids import Ragged
from ..core.shapes import Float32, Int64
from ..ops.fused_gather import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
)
from ..ops.reorder import fused_reorder_by_indices
from ..ops.split import ragged_split_by_indices
from ..routing.router import Router
from ..tables.store import TableKeys


@dataclass(frozen=True, eq=False)
class Packed:
    """Ids of K tables for R owners: owner after owner, inside an owner table after table.

    The rows of `ids` come back in the same order, one flat tensor. `places` says for every id that
    was packed which of `ids` it is.
    """

    ids: Int64[Tensor, "u"]
    slot_sizes: Int64[Tensor, "R * K"]  # ids of each table for each owner, in host memory
    places: Tensor  # int32 or int64 [n]
    splits: tuple[int, ...]  # of what was packed, by table
    dims: tuple[int, ...]

    @property
    def shard_sizes(self) -> list[int]:
        """Ids for each owner."""
        return self.slot_sizes.view(-1, len(self.dims)).sum(1).tolist()

    @property
    def offset_sizes(self) -> list[int]:
        """Ids that were packed, of each table."""
        return [stop - start for start, stop in pairwise(self.splits)]

    @cached_property  # an update needs what its lookup needed
    def offsets(self) -> Tensor:
        """Where the row of each id that was packed starts among the rows of `ids`."""
        if len(set(self.dims)) == 1:
            return self.places * self.dims[0]
        ranks, device = len(self.slot_sizes) // len(self.dims), self.ids.device
        widths = torch.tensor(self.dims * ranks)
        # Inside a cell rows lie one behind the other; a cell starts where those before it end.
        ids, floats = self.slot_sizes, self.slot_sizes * widths
        first = (floats.cumsum(0) - floats) - (ids.cumsum(0) - ids) * widths
        cells = torch.arange(len(widths)).repeat_interleave(self.slot_sizes).to(device)
        places = torch.arange(len(self.ids), device=device)
        starts = first.to(device)[cells] + places * widths.to(device)[cells]
        return starts[self.places]

    @property
    def floats(self) -> int:
        """Values of the rows of `ids`."""
        sizes = self.slot_sizes.view(-1, len(self.dims)).sum(0).tolist()
        return sum(n * dim for n, dim in zip(sizes, self.dims, strict=True))

    def unpack(
        self, rows: Float32[Tensor, "floats"], out: Float32[Tensor, "packed_floats"]
    ) -> None:
        """The row of every id that was packed, flat, into `out`, from the rows of `ids`."""
        if len(set(self.dims)) == 1:
            dim = self.dims[0]
            torch.index_select(rows.view(-1, dim), 0, self.places, out=out.view(-1, dim))
            return
        offsets = self.offsets.split(self.offset_sizes)
        found = fused_gather_embeddings_by_input(rows, offsets, self.dims)
        torch.cat([part.view(-1) for part in found], out=out)

    def sum_gradients(self, grads: Float32[Tensor, "packed_floats"]) -> Float32[Tensor, "floats"]:
        """Gradients of `ids` from those of every id that was packed: equal ids are summed."""
        return fused_gather_embeddings_by_input_gradient(
            self.floats, self._by_table(grads), self.offsets.split(self.offset_sizes), self.dims
        )

    def in_order(self, rows: Float32[Tensor, "packed_floats"]) -> Float32[Tensor, "floats"]:
        """Rows of what was packed in the order of `ids`; only where duplicates were kept."""
        tables = len(self.dims)
        by_table = self._by_table(rows)
        cells = self.places.argsort().split(self.slot_sizes.tolist())
        parts = [
            by_table[i % tables].index_select(0, cell - self.splits[i % tables]).view(-1)
            for i, cell in enumerate(cells)
        ]
        return torch.cat(parts)

    def occurrences(self, counts: Int64[Tensor, "n"] | None = None) -> Int64[Tensor, "u"]:
        """How often each of `ids` was packed; what was packed stands for `counts` each."""
        if counts is None:
            return torch.bincount(self.places, minlength=len(self.ids))
        return torch.zeros_like(self.ids).index_add_(0, self.places, counts)

    def _by_table(self, flat: Tensor) -> list[Tensor]:
        sizes = [n * dim for n, dim in zip(self.offset_sizes, self.dims, strict=True)]
        parts = flat.split(sizes)
        return [part.view(-1, dim) for part, dim in zip(parts, self.dims, strict=True)]


def pack(
    keys: TableKeys, dims: Sequence[int], routers: Sequence[Router], *, dedup: bool = True
) -> Packed:
    """Lays keys out for the owners that each table's router names.

    Equal ids of a table are packed once, as first seen, unless `dedup` is off.

    >>> keys = TableKeys(torch.tensor([4, 0, 2, 2, 3, 2, 4]), (0, 4, 7))
    >>> packed = pack(keys, (1, 2), [Router("roundrobin", 2)] * 2)
    >>> packed.ids.tolist(), packed.shard_sizes, packed.slot_sizes.tolist()
    ([4, 0, 2, 2, 4, 3], [5, 1], [3, 2, 0, 1])
    >>> packed.offsets.tolist()
    [0, 1, 2, 2, 7, 3, 5]
    """
    found, number = _distinct(keys) if dedup else (_all(keys), None)
    if routers[0].shards == 1:
        sizes, ids, place = found.row_splits.diff(), found.values, None
    else:
        sizes, ids, place = _by_owner(found, routers)
    sizes = sizes.cpu()
    if place is None:
        place = torch.arange(len(ids), device=ids.device) if number is None else number
    elif number is not None:
        place = place[number]
    return Packed(ids, sizes, place, keys.splits, tuple(dims))


def _all(keys: TableKeys) -> Ragged:
    return Ragged.trusted(keys.ids, torch.tensor(keys.splits, device=keys.ids.device))


def _distinct(keys: TableKeys) -> tuple[Ragged, Tensor]:
    """The distinct ids of each table, and which of them each id is."""
    tables = [keys.ids_of(k) for k in range(keys.tables)]
    ones = [1] * keys.tables  # then the offsets of a single shard are places
    found = fused_reorder_by_indices(tables, 1, ones)
    sizes = splits_of(found.sharded_slot_sizes.tolist())
    splits = torch.tensor(sizes, device=keys.ids.device)
    return Ragged.trusted(found.output, splits), found.fused_embedding_offsets


def _by_owner(found: Ragged, routers: Sequence[Router]) -> tuple[Tensor, Tensor, Tensor]:
    """How many of each table go to each owner, the ids in that order, and the place of each."""
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
    """Borders of parts of these sizes, from 0 to their end.

    >>> splits_of([2, 0, 1])
    (0, 2, 2, 3)
    """
    return (0, *accumulate(sizes))
