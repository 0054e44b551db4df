"""The keys of one call by the server that owns them, and where each answer goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from ..core.errors import StateError
from ..core.ids import Ragged
from ..core.shapes import Float32, Int64
from ..ops.fill import fill_trusted, sum_trusted
from ..ops.offsets import ValueOffset
from ..ops.split import ragged_split_by_indices
from ..ops.unique import unique_key_with_value_and_offset
from ..routing.router import Router
from ..tables.multi.parts import first_not_finite, float_offsets
from ..tables.store import TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What one server is asked: its keys, and which of the call's distinct keys they are."""

    server: int
    keys: TableKeys
    numbers: Ragged  # by table


@dataclass(frozen=True, eq=False)
class Routed:
    """Keys of a call, cut for their owners; servers without keys have no share.

    `where` says for every distinct key at which places of the call's rows its row stands.
    """

    keys: TableKeys
    dims: tuple[int, ...]
    shares: tuple[Share, ...]
    where: ValueOffset
    dedup: bool

    @cached_property
    def counts(self) -> Int64[Tensor, "distinct"]:
        """How often each distinct key stands in the call."""
        return self.where.inner_row_splits.diff()

    @property
    def is_plain(self) -> bool:
        """Whether one server gets exactly the keys of the call, in their order."""
        alone = len(self.shares) == 1
        return alone and len(self.shares[0].keys.ids) == len(self.keys.ids)

    def fill(
        self, share: Share, rows: Float32[Tensor, "floats"], out: Float32[Tensor, "call"]
    ) -> None:
        """Writes the rows that a server answered to all their places."""
        wanted = float_offsets(share.keys.splits, self.dims)[-1]
        if len(rows) != wanted:
            raise StateError(
                f"server {share.server} answered {len(rows)} values; {wanted} were asked for."
            )
        fill_trusted(share.numbers, rows, self.where, out, self.dims)

    def rows_of(self, share: Share, flat: Float32[Tensor, "floats"]) -> Float32[Tensor, "own"]:
        """The rows or gradients of a share, from those of the call; those of equal keys summed."""
        if self.is_plain:
            return flat
        return sum_trusted(share.numbers, flat, self.where, self.dims)

    def counts_of(
        self, share: Share, given: Int64[Tensor, "n"] | None = None
    ) -> Int64[Tensor, "own"]:
        """How often each key of a share occurred; keys of the call stand for `given` each."""
        if given is None:
            return self.counts[share.numbers.values]
        if not self.dedup:
            return given[share.numbers.values]
        number = torch.empty_like(self.keys.ids)
        number[self._places] = torch.arange(len(self.counts)).repeat_interleave(self.counts)
        summed = torch.zeros_like(self.counts).index_add_(0, number, given)
        return summed[share.numbers.values]

    @property
    def _places(self) -> Int64[Tensor, "n"]:
        """The key of the call that each of `where.values` is the begin of."""
        starts = _starts(self.keys, self.dims)
        return torch.searchsorted(starts, self.where.values)


def route(
    keys: TableKeys, dims: Sequence[int], routers: Sequence[Router], *, dedup: bool = True
) -> Routed:
    """Cuts keys by the owners that each table's router names, keeping their order.

    Equal ids of a table go once, as first seen, unless `dedup` is off.

    >>> keys = TableKeys(torch.tensor([4, 3, 4, 3, 2]), (0, 3, 5))
    >>> routed = route(keys, (1, 2), [Router("roundrobin", 2)] * 2)
    >>> [(s.server, s.keys.ids.tolist(), s.keys.splits) for s in routed.shares]
    [(0, [4, 2], (0, 1, 2)), (1, [3, 3], (0, 1, 2))]
    >>> routed.counts_of(routed.shares[0]).tolist()
    [2, 1]
    """
    given = Ragged.trusted(keys.ids, torch.tensor(keys.splits))
    if dedup:
        found = unique_key_with_value_and_offset(given, dims, generate_buffer=False)
        distinct, where = found.unique_key, found.value_offset
    else:
        everyone = torch.arange(len(keys.ids) + 1)
        distinct = given
        where = ValueOffset(_starts(keys, dims), given.row_splits, everyone)
    borders = pairwise(distinct.row_splits.tolist())
    owners = [
        router.owners(distinct.values[start:stop])
        for router, (start, stop) in zip(routers, borders, strict=True)
    ]
    servers = routers[0].shards
    if servers == 1:
        cut = [distinct], [Ragged.trusted(torch.arange(len(distinct.values)), distinct.row_splits)]
    else:
        cut = ragged_split_by_indices(torch.cat(owners), distinct, servers)
    shares = tuple(
        Share(server, TableKeys(part.values, tuple(part.row_splits.tolist())), numbers)
        for server, (part, numbers) in enumerate(zip(*cut, strict=True))
        if len(part.values)
    )
    return Routed(keys, tuple(dims), shares, where, dedup)


def _starts(keys: TableKeys, dims: Sequence[int]) -> Int64[Tensor, "n"]:
    """Where the row of each key begins among the rows of all."""
    first = float_offsets(keys.splits, dims)
    parts = [
        torch.arange(stop - start) * dim + at
        for (start, stop), dim, at in zip(pairwise(keys.splits), dims, first, strict=False)
    ]
    return torch.cat(parts)


def finite_part(
    keys: TableKeys,
    grads: Float32[Tensor, "floats"],
    counts: Int64[Tensor, "n"],
    dims: Sequence[int],
) -> tuple[TableKeys, Tensor, Tensor, int]:
    """Without the keys whose sum is not finite, and how many gradients those had."""
    if first_not_finite(grads) < 0:
        return keys, grads, counts, 0
    kept, rows, splits = [], [], [0]
    at = float_offsets(keys.splits, dims)
    for k, (start, stop) in enumerate(pairwise(keys.splits)):
        own = grads[at[k] : at[k + 1]].view(stop - start, dims[k])
        good = own.isfinite().all(1)
        kept.append(start + good.nonzero().view(-1))
        rows.append(own[good].view(-1))
        splits.append(splits[-1] + len(kept[-1]))
    chosen = torch.cat(kept)
    dropped = int(counts.sum()) - int(counts[chosen].sum())
    left = TableKeys(keys.ids[chosen], tuple(splits))
    return left, torch.cat(rows), counts[chosen], dropped
