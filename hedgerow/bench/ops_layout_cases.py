"""Cases of the ops benchmark: from vectors to a model's inputs, and gradients back."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.layout import (
    Feature,
    FeatureConfigs,
    OutConfig,
    Slice,
    fused_embedding_to_layout,
)
from .ops_duel import Duel, Maker, Sizes
from .ops_layout_work import LENGTH, WIDTHS, LayoutWork, chain, make_work


def _duel(work: LayoutWork) -> Duel:
    kinds: dict[str, list[Slice]] = {"FIRSTN": [], "MEAN": [], "SUM": []}
    features = {}
    for one in work.features:
        width = WIDTHS[one.table]
        length = LENGTH if one.pooling == "FIRSTN" else 0
        features[one.name] = Feature(f"t{one.table}", one.pooling, (width,), length)
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
    """The smaller set of the original's gradient test, forward and backward."""
    return _duel(make_work(sizes.batch, sizes.gradient_features, shards=3))


CASES: dict[str, Maker] = {
    "layout": layout,
    "layout gradient": layout_gradient,
}
