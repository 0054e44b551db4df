"""The cases of the ops benchmark: vectors by shard and by id, sums of rows of many tables."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hedgerow.monolith.gather_by_ids import (
    find_rows,
    find_rows_plain,
    gather_embeddings_by_input,
    map_id_to_embedding,
    map_id_to_embedding_plain,
)
from hedgerow.ops.fused_gather import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_plain,
)
from hedgerow.ops.reorder import fused_reorder_by_indices, fused_reorder_by_indices_plain
from hedgerow.ops.segment import fused_reduce_and_split
from hedgerow.ops.split import split_by_indices
from hedgerow.routing.bucketize import Bucketized, bucketize, bucketize_by_torch
from hedgerow.routing.router import Router

from .ops_duel import Duel, Maker, Sizes
from .ops_layout_cases import LAYOUT_CASES
from .work import random_ids

_SHARDS, _DIM = 10, 16


Ids = Literal["in order", "shuffled", "64-bit"]


def _distinct(count: int, kind: Ids) -> Tensor:
    """0, 1, 2, ... as they are or shuffled, or ids over all 64 bits in no order."""
    if kind == "64-bit":
        return torch.from_numpy(random_ids(count))
    random = torch.Generator().manual_seed(7)
    return torch.randperm(count, generator=random) if kind == "shuffled" else torch.arange(count)


def _ids_and_vectors(sizes: Sizes, kind: Ids) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, the vector of each, and its shard."""
    ids = _distinct(sizes.ids, kind)
    vectors = torch.randn(sizes.ids, _DIM, generator=torch.Generator().manual_seed(6))
    return ids, vectors, ids % _SHARDS


def _split_chain(shards: Tensor, ids: Tensor, vectors: Tensor) -> list[tuple[Tensor, ...]]:
    """One sort for both; the parts are views."""
    order = shards.argsort(stable=True)
    counts = torch.bincount(shards, minlength=_SHARDS).tolist()
    return [ids[order].split(counts), vectors[order].split(counts)]


def split(sizes: Sizes) -> Duel:
    """Ids and their vectors into ten shards."""
    ids, vectors, shards = _ids_and_vectors(sizes, "in order")

    def ours(many: bool) -> list[list[Tensor]]:
        return [split_by_indices(shards, one, _SHARDS) for one in (ids, vectors)]

    return Duel(ours=ours, peer=lambda: _split_chain(shards, ids, vectors), work=_work(sizes))


def _map_back(kind: Ids, *, whole: bool = False) -> Maker:
    """Vectors split by shard, then found again by id: the result is the input.

    Monolith's benchmark times the two splits too (`whole`).
    """

    def make(sizes: Sizes) -> Duel:
        ids, vectors, shards = _ids_and_vectors(sizes, kind)
        lists, parts = (split_by_indices(shards, one, _SHARDS) for one in (ids, vectors))

        def ours(many: bool) -> Tensor:
            if not whole:
                return map_id_to_embedding(lists, parts, ids, many)
            id_lists, id_parts = (split_by_indices(shards, one, _SHARDS) for one in (ids, vectors))
            return map_id_to_embedding(id_lists, id_parts, ids, many)

        def peer() -> Tensor:
            cut = _split_chain(shards, ids, vectors) if whole else (lists, parts)
            return map_id_to_embedding_plain(list(cut[0]), list(cut[1]), ids, False, False)[0]

        return Duel(ours=ours, peer=peer, work=_work(sizes), wanted=vectors)

    return make


def _work(sizes: Sizes) -> dict[str, int]:
    return {"ids": sizes.ids, "dim": _DIM, "shards": _SHARDS}


def _queries(sizes: Sizes, columns: int, kind: Ids) -> tuple[Tensor, Tensor]:
    """Ids of a table, and input whose entry (x, y) is id number (x + y) mod N."""
    count = sizes.gather_ids
    ids = _distinct(count, kind)
    place = (torch.arange(count)[:, None] + torch.arange(columns)) % count
    return ids, ids[place]


def _gather(dim: int, columns: int) -> Maker:
    def make(sizes: Sizes) -> Duel:
        ids, queries = _queries(sizes, columns, "in order")
        vectors = torch.randn(len(ids), dim, generator=torch.Generator().manual_seed(9))

        def peer() -> tuple[Tensor, Tensor]:
            rows = find_rows_plain([ids], queries, False, False)
            found = vectors.index_select(0, rows.flatten())
            return found.view(*rows.shape, dim), rows

        return Duel(
            ours=lambda many: gather_embeddings_by_input(ids, vectors, queries, many),
            peer=peer,
            work={"ids": len(ids), "queries": queries.numel(), "dim": dim},
        )

    return make


def _lookup(kind: Ids) -> Maker:
    """The part of a gather that finds rows."""

    def make(sizes: Sizes) -> Duel:
        ids, queries = _queries(sizes, 4, kind)
        return Duel(
            ours=lambda many: find_rows([ids], queries, many),
            peer=lambda: find_rows_plain([ids], queries, False, False),
            work={"ids": len(ids), "queries": queries.numel()},
        )

    return make


_BY_ID: dict[str, Maker] = {
    "split": split,
    "map": _map_back("in order"),
    "map shuffled": _map_back("shuffled"),
    "map 64-bit": _map_back("64-bit"),
    "splits and map": _map_back("in order", whole=True),
    "gather lookup": _lookup("in order"),
    "gather lookup shuffled": _lookup("shuffled"),
    "gather lookup 64-bit": _lookup("64-bit"),
    "gather 32": _gather(32, 4),
    "gather 256": _gather(256, 2),
}


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


_BY_SHARD: dict[str, Maker] = {
    "bucketize": ordered_by_owner,
    "reorder 256": reorder_wide,
    "reorder 8": reorder_many,
    "windows": windows,
}


def _slices(width: int) -> list[int]:
    """Narrow tables into ones, others into four, the rest on the last.

    >>> _slices(3), _slices(7)
    ([1, 1, 1], [1, 1, 1, 4])
    """
    if width <= 3:
        return [1] * width
    return [width // 4] * 3 + [width - 3 * (width // 4)]


def _chain(splits: list[Tensor], tables: list[Tensor], slices: list[list[int]]) -> list[Tensor]:
    """Table by table: the row of each vector, index_add, a cut, fresh tensors."""
    found: list[Tensor] = []
    for borders, vectors, widths in zip(splits, tables, slices, strict=True):
        rows = torch.repeat_interleave(borders.diff(), output_size=vectors.shape[0])
        sums = torch.zeros(borders.shape[0] - 1, vectors.shape[1])
        sums.index_add_(0, rows, vectors)
        found += [part.contiguous() for part in sums.split(widths, dim=1)]
    return found


def reduce_and_split(sizes: Sizes) -> Duel:
    """Tables of widths 1, 3, 5, ..., each with rows of every length below the batch, shuffled."""
    random = torch.Generator().manual_seed(5)
    splits, tables = [], []
    widths = [2 * number + 1 for number in range(sizes.tables)]
    for width in widths:
        lengths = torch.randperm(sizes.reduce_rows, generator=random)
        splits.append(torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))
        eighths = torch.randint(-32, 33, (int(splits[-1][-1]), width), generator=random)
        tables.append(eighths / 8)  # sums of them are exact in any order
    slices = [_slices(width) for width in widths]
    return Duel(
        ours=lambda many: fused_reduce_and_split(splits, tables, slices),
        peer=lambda: _chain(splits, tables, slices),
        work={"tables": sizes.tables, "batch": sizes.reduce_rows},
    )


_SUMS: dict[str, Maker] = {"reduce and split": reduce_and_split}


CASES: dict[str, Maker] = {**_BY_ID, **_BY_SHARD, **LAYOUT_CASES, **_SUMS}
