"""Cases of the ops benchmark: ids ordered by shard, and the windows of their vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.fused_gather import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_plain,
)
from ..ops.reorder import fused_reorder_by_indices, fused_reorder_by_indices_plain
from ..routing.bucketize import Bucketized, bucketize, bucketize_by_torch
from ..routing.router import Router
from .ops_duel import Duel, Maker, Sizes


def _reorder(slots: list[Tensor], shards: int, dim: int) -> Duel:
    dims = [dim] * len(slots)

    def ours(many: bool) -> list[Tensor]:
        found = fused_reorder_by_indices(slots, shards, dims)
        return [
            found.output,
            found.shard_sizes,
            found.sharded_slot_sizes,
            found.emb_offset_sizes,
            found.fused_embedding_offsets,
        ]

    return Duel(
        ours=ours,
        peer=lambda: fused_reorder_by_indices_plain(slots, shards, dims, False),
        work={"slots": len(slots), "ids": sum(map(len, slots)), "shards": shards},
    )


def reorder_wide(sizes: Sizes) -> Duel:
    """30 slots of ids from the full range, each there twice, and 256 shards."""
    random = torch.Generator().manual_seed(11)
    slots = []
    for _ in range(30):
        ids = torch.empty(sizes.reorder_ids // 30, dtype=torch.int64)
        ids.random_(-(2**63), None, generator=random)
        twice = torch.cat([ids, ids])
        slots.append(twice[torch.randperm(len(twice), generator=random)])
    return _reorder(slots, shards=256, dim=16)


def reorder_many(sizes: Sizes) -> Duel:
    """128 slots of ids below 2^31, and 8 shards."""
    random = torch.Generator().manual_seed(12)
    ids = torch.randint(0, 2**31, (128, sizes.reorder_slot_ids), generator=random)
    return _reorder(list(ids.unbind()), shards=8, dim=16)


def windows(sizes: Sizes) -> Duel:
    """Windows of width 3 and 2 of one flat tensor."""
    random = torch.Generator().manual_seed(13)
    dims = [3, 2]
    length = sum(count * dim for count, dim in zip(sizes.windows, dims, strict=True))
    fused = torch.randn(length, generator=random)
    offsets = [
        torch.randint(0, length - dim + 1, (count,), generator=random, dtype=torch.int32)
        for count, dim in zip(sizes.windows, dims, strict=True)
    ]
    return Duel(
        ours=lambda many: fused_gather_embeddings_by_input(fused, offsets, dims),
        peer=lambda: fused_gather_embeddings_by_input_plain(fused, offsets, dims, False),
        work={"windows": list(sizes.windows), "dims": dims},
    )


def ordered_by_owner(sizes: Sizes) -> Duel:
    """Bags of about 50 ids, 20 features, hashed over 8 owners, with the way back."""
    random = torch.Generator().manual_seed(14)
    features, longest = 20, 100
    rows = max(1, 2 * sizes.ids // longest // features) * features
    lengths = torch.randint(0, longest + 1, (rows,), generator=random)
    keys = torch.empty(int(lengths.sum()), dtype=torch.int64)
    keys.random_(-(2**63), None, generator=random)
    routers = [Router("hash_roundrobin", 8)] * features
    borders = [rows // features * f for f in range(features + 1)]

    def parts(found: Bucketized) -> list[Tensor]:
        way_back = found.unbucketize_permute
        return [found.lengths, found.keys, *([] if way_back is None else [way_back])]

    return Duel(
        ours=lambda many: parts(bucketize(lengths, keys, routers, sequence=True)),
        peer=lambda: parts(bucketize_by_torch(lengths, keys, routers, borders, sequence=True)),
        work={"features": features, "ids": len(keys), "shards": 8},
    )


CASES: dict[str, Maker] = {
    "bucketize": ordered_by_owner,
    "reorder 256": reorder_wide,
    "reorder 8": reorder_many,
    "windows": windows,
}
