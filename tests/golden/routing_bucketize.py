"""Vectors of batches ordered by owner."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from hedgerow.routing.bucketize import bucketize, bucketize_by_torch
from hedgerow.routing.router import Router

from .routing_area import AREA
from .runner import Case


def _routers(c: dict[str, Any]) -> list[Router]:
    """Blocks are rows of one shard; bounds, where there are some, stand in their place."""
    bounds = c.get("bounds", [None] * len(c["modes"]))
    return [
        Router(mode, c["world"], rows=block * c["world"], bounds=own)
        for mode, block, own in zip(c["modes"], c["blocks"], bounds, strict=True)
    ]


@AREA.handles("bucketize", "cases")
def ordered_by_owner(case: Case) -> None:
    c = case.take(
        (
            "name",
            "world",
            "modes",
            "blocks",
            "lengths",
            "keys",
            "out_lengths",
            "out_keys",
            "out_positions",
            "unbucketize_permute",
        ),
        ("weights", "out_weights", "batch_per_feature", "bounds"),
    )
    lengths = torch.tensor(c["lengths"], dtype=torch.int64)
    keys = torch.tensor(c["keys"], dtype=torch.int64)
    weights = torch.tensor(c["weights"]) if "weights" in c else None
    routers, sizes = _routers(c), c.get("batch_per_feature")
    ours = bucketize(
        lengths, keys, routers, batch_sizes=sizes, weights=weights, positions=True, sequence=True,
        local_keys=True,
    )  # fmt: skip
    sizes = sizes or [len(lengths) // len(routers)] * len(routers)
    borders = [0, *accumulate(sizes)]
    plain = bucketize_by_torch(lengths, keys, routers, borders, weights, True, True, True)
    for found in (ours, plain):
        assert found.lengths.tolist() == c["out_lengths"]
        assert found.keys.tolist() == c["out_keys"]
        assert found.positions is not None
        assert found.positions.tolist() == c["out_positions"]
        assert found.unbucketize_permute is not None
        assert found.unbucketize_permute.tolist() == c["unbucketize_permute"]
        if weights is None:
            assert found.weights is None
            assert "out_weights" not in c
        else:
            assert found.weights is not None
            assert found.weights.tolist() == torch.tensor(c["out_weights"]).tolist()
