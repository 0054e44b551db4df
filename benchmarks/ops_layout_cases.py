"""Cases of the ops benchmark: from vectors to a model's inputs, and gradients back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hedgerow.monolith.layouts import (
    FeatureConfigs,
    LayoutFeature,
    OutConfig,
    Slice,
    fused_embedding_to_layout,
)

from .ops_duel import Duel, Maker, Sizes

WIDTHS = (13, 21)  # of the features of table 0 and of table 1, in turn
LENGTH = 3  # positions that FIRSTN keeps
_VOCABULARY = 500  # ids of one feature
_SHARED = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureWork:
    """One feature: its name, table and pooling, and the rows of its ids in its table."""

    name: str
    table: int
    pooling: str
    shared: bool
    lengths: Tensor  # ids of each entry
    rows: Tensor  # of all ids: rows of the table's lists, one list after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutWork:
    """A batch in element encoding (section 7.2), with vectors of every (table, shard)."""

    batch: int
    shards: int
    features: list[FeatureWork]
    embeddings: list[Tensor]  # flat, by table and shard; they ask for a gradient
    fid_offset: Tensor
    feature_offset: Tensor
    nfl_offset: Tensor


def pooling_of(number: int, features: int) -> str:
    """Half of the features FIRSTN, of the others every second SUM.

    >>> kinds = [pooling_of(number, 199) for number in range(199)]
    >>> [kinds.count(kind) for kind in ("SUM", "MEAN", "FIRSTN")]
    [49, 50, 100]
    """
    pooled = features // 2
    if number >= pooled:
        return "FIRSTN"
    return "SUM" if number < pooled // 2 else "MEAN"


def make_work(batch: int, features: int, shards: int) -> LayoutWork:
    """1 to 6 ids a row, every second feature shared, ids spread evenly over the shards."""
    random = torch.Generator().manual_seed(17)
    tables = [[q for q in range(features) if q % 2 == t] for t in range(len(WIDTHS))]
    held = _VOCABULARY // shards * shards
    made: list[FeatureWork] = []
    words: list[Tensor] = []
    for q in range(features):
        table, place, shared = q % 2, tables[q % 2].index(q), q // 2 % 2 == 1
        lengths = torch.randint(1, 7, (1 if shared else batch,), generator=random)
        ids = torch.randint(0, held, (int(lengths.sum()),), generator=random)
        shard = ids % shards
        row = place * (held // shards) + ids // shards  # in the list of its table and shard
        words.append(((table * shards + shard) << 32) | (row * WIDTHS[table]))
        made.append(
            FeatureWork(
                name=f"f{q:03}",
                table=table,
                pooling=pooling_of(q, features),
                shared=shared,
                lengths=lengths,
                rows=shard * (len(tables[table]) * (held // shards)) + row,
            )
        )
    entries = torch.tensor([0, *(len(one.lengths) for one in made)]).cumsum(0)
    flags = torch.tensor([_SHARED if one.shared else 0 for one in made] + [0])
    return LayoutWork(
        batch=batch,
        shards=shards,
        features=made,
        embeddings=_vectors([len(t) * (held // shards) for t in tables], shards, random),
        fid_offset=torch.cat(words),
        feature_offset=torch.cat([torch.zeros(1).long(), *(one.lengths for one in made)])
        .cumsum(0)
        .int(),
        nfl_offset=entries | flags,
    )


def _vectors(rows: list[int], shards: int, random: torch.Generator) -> list[Tensor]:
    return [
        (torch.randint(-32, 33, (count * width,), generator=random) / 8).requires_grad_()
        for count, width in zip(rows, WIDTHS, strict=True)
        for _ in range(shards)
    ]


def chain(work: LayoutWork) -> list[Tensor]:
    """The layouts by torch's ops: one gather a table, one pooling a feature, then joined.

    SUM features are concatenated, of MEAN features each stands alone, so do those of FIRSTN.
    """
    gathered = [_gathered(work, table) for table in range(len(WIDTHS))]
    pooled: dict[str, list[Tensor]] = {"FIRSTN": [], "MEAN": [], "SUM": []}
    for one in work.features:
        vectors = gathered[one.table].pop(0)
        out = _first(one, vectors) if one.pooling == "FIRSTN" else _pooled(one, vectors)
        if one.shared:
            out = out.expand(work.batch, *out.shape[1:])
        pooled[one.pooling].append(out)
    alone = [out.contiguous() for out in (*pooled["FIRSTN"], *pooled["MEAN"])]
    return [*alone, torch.cat(pooled["SUM"], dim=1)]


def _gathered(work: LayoutWork, table: int) -> list[Tensor]:
    """The vectors of each feature of a table, in order."""
    lists = work.embeddings[table * work.shards : (table + 1) * work.shards]
    mine = [one for one in work.features if one.table == table]
    rows = torch.cat([one.rows for one in mine])
    vectors = torch.cat(lists).view(-1, WIDTHS[table]).index_select(0, rows)
    return list(vectors.split([len(one.rows) for one in mine]))


def _pooled(one: FeatureWork, vectors: Tensor) -> Tensor:
    rows = torch.repeat_interleave(one.lengths, output_size=len(vectors))
    sums = vectors.new_zeros(len(one.lengths), vectors.shape[1]).index_add(0, rows, vectors)
    return sums / one.lengths[:, None] if one.pooling == "MEAN" else sums


def _first(one: FeatureWork, vectors: Tensor) -> Tensor:
    """Each kept vector goes to its place among zeros."""
    rows = torch.repeat_interleave(one.lengths, output_size=len(vectors))
    place = torch.arange(len(vectors)) - (one.lengths.cumsum(0) - one.lengths)[rows]
    kept = place < LENGTH
    out = vectors.new_zeros(len(one.lengths) * LENGTH, vectors.shape[1])
    out = out.index_copy(0, (rows * LENGTH + place)[kept], vectors[kept])
    return out.view(len(one.lengths), LENGTH, -1)


def _duel(work: LayoutWork) -> Duel:
    kinds: dict[str, list[Slice]] = {"FIRSTN": [], "MEAN": [], "SUM": []}
    features = {}
    for one in work.features:
        width = WIDTHS[one.table]
        length = LENGTH if one.pooling == "FIRSTN" else 0
        features[one.name] = LayoutFeature(f"t{one.table}", one.pooling, (width,), length)
        kinds[one.pooling].append(Slice(one.name, 0, width))
    config = FeatureConfigs(
        features,
        {
            "a": OutConfig("NONE", tuple(kinds["FIRSTN"])),
            "b": OutConfig("NONE", tuple(kinds["MEAN"])),
            "c": OutConfig("CONCAT", tuple(kinds["SUM"])),
        },
    )
    random = torch.Generator().manual_seed(18)
    fed = [torch.randint(-8, 9, out.shape, generator=random) / 8 for out in chain(work)]

    def with_gradient(outs: list[Tensor]) -> list[Tensor]:
        return [*outs, *torch.autograd.grad(outs, work.embeddings, fed)]

    def ours(many: bool) -> list[Tensor]:
        return with_gradient(
            fused_embedding_to_layout(
                work.embeddings,
                config,
                fid_offset=work.fid_offset,
                feature_offset=work.feature_offset,
                nfl_offset=work.nfl_offset,
                batch_size=work.batch,
                num_shards=work.shards,
            )
        )

    return Duel(
        ours=ours,
        peer=lambda: with_gradient(chain(work)),
        work={
            "features": len(work.features),
            "batch": work.batch,
            "shards": work.shards,
            "ids": len(work.fid_offset),
        },
    )


def layout(sizes: Sizes) -> Duel:
    """All poolings, forward and backward."""
    return _duel(make_work(sizes.batch, sizes.features, shards=5))


def layout_gradient(sizes: Sizes) -> Duel:
    """The smaller set of Monolith's gradient test, forward and backward."""
    return _duel(make_work(sizes.batch, sizes.gradient_features, shards=3))


LAYOUT_CASES: dict[str, Maker] = {
    "layout": layout,
    "layout gradient": layout_gradient,
}
