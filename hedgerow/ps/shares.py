"""The keys of one call by the server that owns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, pairwise
from operator import mul

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from ..tables.multi.by_owner import Packed
from ..tables.multi.parts import first_not_finite, float_offsets
from ..tables.store import TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What one server is asked: its keys, and where they and their rows lie among all of a call."""

    server: int
    keys: TableKeys
    ids: slice
    floats: slice


def shares_of(packed: Packed) -> list[Share]:
    """The share of each server that owns any of the packed keys.

    >>> from hedgerow.routing.router import Router
    >>> from hedgerow.tables.multi.by_owner import ByOwner
    >>> keys = TableKeys(torch.tensor([4, 3, 4, 3, 2]), (0, 3, 5))
    >>> packed = ByOwner((1, 2), [Router("roundrobin", 2)] * 2).pack(keys)
    >>> [(s.server, s.keys.ids.tolist(), s.keys.splits, s.floats) for s in shares_of(packed)]
    [(0, [4, 2], (0, 1, 2), slice(0, 3, None)), (1, [3, 3], (0, 1, 2), slice(3, 6, None))]
    """
    found, ids_from, floats_from = list[Share](), 0, 0
    for server, sizes in enumerate(packed.slot_sizes.view(-1, len(packed.dims)).tolist()):
        splits = (0, *accumulate(sizes))
        ids = slice(ids_from, ids_from + splits[-1])
        floats = slice(floats_from, floats_from + sum(map(mul, sizes, packed.dims)))
        if splits[-1]:
            found.append(Share(server, TableKeys(packed.ids[ids], splits), ids, floats))
        ids_from, floats_from = ids.stop, floats.stop
    return found


def joined(packs: Sequence[Packed]) -> Packed:
    """The packed keys of several lookups, side by side for each server and table."""
    sizes = torch.stack([one.slot_sizes for one in packs]).sum(0)
    ids, first = side_by_side(packs, [one.ids for one in packs]), packs[0]
    floats = sum(one.floats for one in packs)
    return replace(first, ids=ids, slot_sizes=sizes, floats=floats, is_plain=False)


def side_by_side(
    packs: Sequence[Packed], values: Sequence[Tensor], widths: Sequence[int] = (1,)
) -> Tensor:
    """Values of the packed keys of several lookups, `widths` for each key, in their joined order.

    >>> from hedgerow.routing.router import Router
    >>> from hedgerow.tables.multi.by_owner import ByOwner
    >>> owners = ByOwner((1,), [Router("roundrobin", 2)])
    >>> packs = [owners.pack(TableKeys.of_one(torch.tensor(ids))) for ids in ([1, 2], [2, 4, 3])]
    >>> side_by_side(packs, [one.ids for one in packs]).tolist()
    [2, 2, 4, 1, 3]
    """
    cells = [
        part.split(list(map(mul, one.slot_sizes.tolist(), cycle(widths))))
        for one, part in zip(packs, values, strict=True)
    ]
    return torch.cat([cell for of_slot in zip(*cells, strict=True) for cell in of_slot])


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
