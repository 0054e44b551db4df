"""Gradients of distinct keys, between their sum and the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from .policy import ClipRow
from .store import Lookup, TableKeys


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
        tables = range(len(self.dims))
        ids = [part for k in tables for part in (self.keys.ids_of(k), later.keys.ids_of(k))]
        rows = [part.view(-1) for k in tables for part in (self.grads_of(k), later.grads_of(k))]
        counts = [part for k in tables for part in (self.counts_of(k), later.counts_of(k))]
        splits = tuple(a + b for a, b in zip(self.keys.splits, later.keys.splits, strict=True))
        both = summed(
            TableKeys(torch.cat(ids), splits), torch.cat(rows), torch.cat(counts), self.dims
        )
        if isinstance(self.at, Lookup):  # whose slots are those of fewer keys
            return replace(both, at=replace(self.at, keys=both.keys, slots=None), given=given)
        return replace(both, given=given)


def summed(
    at: TableKeys | Lookup,
    grads: Float32[Tensor, "floats"],
    counts: Int64[Tensor, "n"] | None,
    dims: Sequence[int],
) -> SummedGradients:
    """Adds up the gradients of equal keys; each gradient stands for `counts` of them, if given.

    Where the lookup says in which slots the rows are, the sums keep them.
    """
    keys = at.keys if isinstance(at, Lookup) else at
    ids, rows, found, firsts = [], [], [], []
    for k, part in enumerate(_rows_of(grads.reshape(-1), keys.splits, tuple(dims))):
        start, stop = keys.splits[k : k + 2]
        own, inverse = keys.ids[start:stop].unique(return_inverse=True)
        given = torch.ones_like(inverse) if counts is None else counts[start:stop]
        ids.append(own)
        rows.append(part.new_zeros(len(own), dims[k]).index_add_(0, inverse, part).view(-1))
        found.append(torch.zeros_like(own).index_add_(0, inverse, given))
        if isinstance(at, Lookup) and at.slots is not None:
            places = torch.arange(start, stop, device=own.device)
            last = torch.full_like(own, stop)
            firsts.append(last.scatter_reduce_(0, inverse, places, "amin"))
    distinct = TableKeys(torch.cat(ids), (0, *accumulate(map(len, ids))))
    where: TableKeys | Lookup = distinct
    if isinstance(at, Lookup) and at.slots is not None:
        slots = at.slots[torch.cat(firsts)]
        where = Lookup(distinct, at.rows[:0], at.dims, slots, at.epoch)
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
