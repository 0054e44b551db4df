"""Lays the ids of several tables out for their owners, and says where each row will arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ..core.ids import Ragged
from ..core.shapes import Float32, Int64
from ..ops.fused_gather import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
)
from ..ops.split import ragged_split_by_indices
from ..ops.unique import unique_key_with_value_and_offset
from ..routing.router import Router
from ..tables.store import TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Ids of K tables for R owners: owner after owner, inside an owner table after table.

    The rows of `ids` come back in the same order, one flat tensor; `offsets` says for every id that
    was packed where its row starts there, `places` which of `ids` it is.
    """

    ids: Int64[Tensor, "u"]
    slot_sizes: Int64[Tensor, "R * K"]  # ids of each table for each owner
    places: Int64[Tensor, "n"]
    offsets: Int64[Tensor, "n"]
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

    @property
    def floats(self) -> int:
        """Values of the rows of `ids`."""
        sizes = self.slot_sizes.view(-1, len(self.dims)).sum(0).tolist()
        return sum(n * dim for n, dim in zip(sizes, self.dims, strict=True))

    def unpack(self, rows: Float32[Tensor, "floats"]) -> Float32[Tensor, "packed_floats"]:
        """The row of every id that was packed, flat, from the rows of `ids`."""
        if len(set(self.dims)) == 1:
            dim = self.dims[0]
            return rows.view(-1, dim).index_select(0, self.places).view(-1)
        offsets = self.offsets.split(self.offset_sizes)
        found = fused_gather_embeddings_by_input(rows, offsets, self.dims)
        return torch.cat([part.view(-1) for part in found])

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
    found, number = _distinct(keys) if dedup else (_all(keys), torch.arange(len(keys.ids)))
    borders = found.row_splits.tolist()
    owners = [
        router.owners(found.values[start:stop])
        for router, (start, stop) in zip(routers, pairwise(borders), strict=True)
    ]
    ranks = routers[0].shards
    by_owner, order = ragged_split_by_indices(torch.cat(owners), found, ranks)
    sizes = torch.stack([part.row_splits.diff() for part in by_owner]).view(-1)
    place = torch.empty_like(found.values)
    place[torch.cat([part.values for part in order])] = torch.arange(len(place))
    widths = torch.tensor(tuple(dims) * ranks).repeat_interleave(sizes, output_size=len(place))
    places = place[number]
    return Packed(
        ids=torch.cat([part.values for part in by_owner]),
        slot_sizes=sizes,
        places=places,
        offsets=(widths.cumsum(0) - widths)[places],
        splits=keys.splits,
        dims=tuple(dims),
    )


def _all(keys: TableKeys) -> Ragged:
    return Ragged.trusted(keys.ids, torch.tensor(keys.splits))


def _distinct(keys: TableKeys) -> tuple[Ragged, Int64[Tensor, "n"]]:
    """The distinct ids of each table, and which of them each id is."""
    ones = [1] * keys.tables  # then offsets are places
    found = unique_key_with_value_and_offset(_all(keys), ones, generate_buffer=False)
    at, distinct = found.value_offset, found.unique_key
    number = torch.empty_like(keys.ids)
    number[at.values] = torch.arange(len(distinct.values)).repeat_interleave(
        at.inner_row_splits.diff(), output_size=len(keys.ids)
    )
    return distinct, number


def splits_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Borders of parts of these sizes, from 0 to their end.

    >>> splits_of([2, 0, 1])
    (0, 2, 2, 3)
    """
    return (0, *accumulate(sizes))
