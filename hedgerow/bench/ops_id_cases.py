"""Cases of the ops benchmark: vectors split by shard, and found again by their ids."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..ops.gather import (
    find_rows,
    find_rows_plain,
    gather_embeddings_by_input,
    map_id_to_embedding,
    map_id_to_embedding_plain,
)
from ..ops.split import split_by_indices
from .ops_duel import Duel, Maker, Sizes
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

    The original's benchmark times the two splits too (`whole`).
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


CASES: dict[str, Maker] = {
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
