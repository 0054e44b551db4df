"""Gradients of distinct keys, between their sum and the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from .policy import ClipRow
from .store import Joined, Lookup, TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class SummedGradients:
    """The sum of the gradients of each key; `counts` says how many gradients were added up.

    Changing `grads` in place changes the update that `apply_gradients(at, grads, counts=counts)`
    makes of it.
    """

    at: TableKeys | Lookup
    grads: Float32[Tensor, "floats"]
    counts: Int64[Tensor, "n"]
    dims: tuple[int, ...]
    given: bool = True  # whether autograd gave a gradient, be it of no row; over ranks on any rank

    @property
    def keys(self) -> TableKeys:
        """The keys, table after table, each once."""
        return self.at.keys if isinstance(self.at, Lookup) else self.at

    def grads_of(self, k: int) -> Float32[Tensor, "n_k dim_k"]:
        """The gradients of table `k`, without a copy."""
        return _rows_of(self.grads, self.keys.splits, self.dims)[k]

    def counts_of(self, k: int) -> Int64[Tensor, "n_k"]:
        """How many gradients each key of table `k` had."""
        return self.counts[self.keys.splits[k] : self.keys.splits[k + 1]]

    def clipped(self, clip: ClipRow) -> SummedGradients:
        """The same keys, with gradients that are no longer than the limit."""
        return replace(self, grads=clipped(self.keys, self.grads, self.dims, clip))

    def with_later(self, later: SummedGradients) -> SummedGradients:
        """The sums of these gradients and later ones.

        >>> keys = TableKeys(torch.tensor([7, 7, 8]), (0, 3))
        >>> first = summed(keys, torch.tensor([3.0, 1.0, 0.5]), None, (1,))
        >>> both = first.with_later(summed(keys, torch.ones(3), None, (1,)))
        >>> both.keys.ids.tolist(), both.grads.tolist(), both.counts.tolist()
        ([7, 8], [6.0, 1.5], [4, 2])
        """
        given = self.given or later.given
        if not len(later.counts):
            return replace(self, given=given)
        both = joined([self, later])
        return replace(summed(both.at, both.grads, both.counts, self.dims), given=given)

    def of_given_keys(self) -> SummedGradients:
        """Without the keys of which no gradient was added up.

        >>> ids, counts = torch.tensor([7, 8]), torch.tensor([0, 2])
        >>> sums = SummedGradients(TableKeys.of_one(ids), torch.ones(2), counts, (1,))
        >>> sums.of_given_keys().keys.ids.tolist()
        [8]
        """
        places = self.counts.nonzero().view(-1)
        if len(places) == len(self.counts):
            return self
        borders = torch.tensor(self.keys.splits, device=places.device)
        splits = tuple(torch.searchsorted(places, borders).tolist())
        at = self.at
        if isinstance(at, Lookup):
            at = at.part(places, splits)
        else:
            at = TableKeys(at.ids[places], splits)
        grads = _rows_at(self.grads, self.keys.splits, self.dims, places, splits)
        return SummedGradients(at, grads, self.counts[places], self.dims, self.given)


def joined(several: Sequence[SummedGradients]) -> SummedGradients:
    """The keys of all, one after the other inside a table, and their gradients as they are."""
    first = several[0]
    if len(several) == 1:
        return first
    tables = range(len(first.dims))
    nothing = first.grads[:0]
    lookups = [
        one.at if isinstance(one.at, Lookup) else Lookup(one.at, nothing, one.dims)
        for one in several
    ]
    grads = [one.grads_of(k).reshape(-1) for k in tables for one in several]
    counts = [one.counts_of(k) for k in tables for one in several]
    return SummedGradients(Joined.of(lookups), torch.cat(grads), torch.cat(counts), first.dims)


def by_lookup(
    at: Lookup,
    grads: Float32[Tensor, "floats"],
    counts: Int64[Tensor, "n"] | None,
) -> list[tuple[Lookup, Float32[Tensor, "own_floats"], Int64[Tensor, "m"] | None]]:
    """The lookup, or those that it is made of, each with its gradients and counts."""
    if not isinstance(at.epoch, Joined):
        return [(at, grads, counts)]
    found = list[tuple[Lookup, Tensor, Tensor | None]]()
    for one, places, splits in at.epoch.places_of(at):
        own = _rows_at(grads, at.keys.splits, at.dims, places, splits)
        found += by_lookup(one, own, None if counts is None else counts[places])
    return found


def summed(
    at: TableKeys | Lookup,
    grads: Float32[Tensor, "floats"],
    counts: Int64[Tensor, "n"] | None,
    dims: Sequence[int],
) -> SummedGradients:
    """Adds up the gradients of equal keys; each gradient stands for `counts` of them, if given.

    Where the lookup says where it found the keys, the sums keep it.
    """
    keys = at.keys if isinstance(at, Lookup) else at
    slots = at.slots if isinstance(at, Lookup) else None
    ids, rows, found, firsts = [], [], [], []
    for k, part in enumerate(_rows_of(grads.reshape(-1), keys.splits, tuple(dims))):
        start, stop = keys.splits[k : k + 2]
        own, inverse = keys.ids[start:stop].unique(return_inverse=True)
        given = torch.ones_like(inverse) if counts is None else counts[start:stop]
        ids.append(own)
        rows.append(part.new_zeros(len(own), dims[k]).index_add_(0, inverse, part).view(-1))
        found.append(torch.zeros_like(own).index_add_(0, inverse, given))
        if slots is not None:
            places = torch.arange(start, stop, device=own.device)
            last = torch.full_like(own, stop)
            firsts.append(last.scatter_reduce_(0, inverse, places, "amin"))
    splits = (0, *accumulate(map(len, ids)))
    where: TableKeys | Lookup = TableKeys(torch.cat(ids), splits)
    if isinstance(at, Lookup) and slots is not None:
        where = at.part(torch.cat(firsts), splits)
    return SummedGradients(where, torch.cat(rows), torch.cat(found), tuple(dims))


def clipped(
    keys: TableKeys, sums: Float32[Tensor, "floats"], dims: Sequence[int], clip: ClipRow
) -> Float32[Tensor, "floats"]:
    """The summed gradients of these keys, none longer than the limit."""
    rows = _rows_of(sums, keys.splits, tuple(dims))
    return torch.cat([clip.clipped(part).view(-1) for part in rows])


def _rows_of(
    flat: Tensor, splits: Sequence[int], dims: tuple[int, ...]
) -> list[Float32[Tensor, "n_k dim_k"]]:
    sizes = [stop - start for start, stop in pairwise(splits)]
    parts = flat.split([n * dim for n, dim in zip(sizes, dims, strict=True)])
    return [part.view(-1, dim) for part, dim in zip(parts, dims, strict=True)]


def _rows_at(
    flat: Tensor,
    splits: Sequence[int],
    dims: tuple[int, ...],
    places: Int64[Tensor, "m"],
    own: Sequence[int],
) -> Float32[Tensor, "own_floats"]:
    """The rows at some places, of which those of table `k` are own[k] .. own[k + 1]."""
    rows = [
        part[places[own[k] : own[k + 1]] - splits[k]].view(-1)
        for k, part in enumerate(_rows_of(flat, splits, dims))
    ]
    return torch.cat(rows)
