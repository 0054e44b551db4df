"""Random configurations and batches of layouts, and one fixed batch that several tests share."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.monolith.layouts import (
    FeatureConfigs,
    LayoutFeature,
    OutConfig,
    ShardedFids,
    Slice,
    shard_fids,
)

from .layout_model import Features, look_up

HUGE = [0, -1, -2, 2**63 - 1, -(2**63), 2**48, 1 << 54]


def random_config(draw: random.Random, one_width: bool = False) -> FeatureConfigs:
    features = {}
    for i in range(draw.randint(1, 6)):
        table = draw.choice(["a", "b"])
        width = {"a": 5, "b": 7}[table] if one_width else draw.randint(1, 20)
        first = draw.randint(1, width)
        dims = (first, width - first) if first < width else (width,)
        pooling = draw.choice(["SUM", "MEAN", "FIRSTN"])
        length = draw.choice([2, 3]) if pooling == "FIRSTN" else draw.choice([0, 4])
        features[draw.choice(["f", "F"]) + str(i)] = LayoutFeature(table, pooling, dims, length)
    outs: dict[str, OutConfig] = {}
    for i in range(draw.randint(1, 5)):
        outs[f"out{i}"] = _random_out(draw, features)
    return FeatureConfigs(features, outs)


def _random_out(draw: random.Random, features: dict[str, LayoutFeature]) -> OutConfig:
    kind = draw.choice(["NONE", "CONCAT", "STACK", "ADDN"])
    first = draw.choice(sorted(features))
    length = features[first].length
    if kind == "ADDN" and length:
        kind = "CONCAT"
    fitting = [n for n in sorted(features) if kind == "NONE" or features[n].length == length]
    width = draw.randint(1, min(features[n].width for n in fitting))
    slices = []
    for _ in range(draw.randint(1, 4)):
        name = draw.choice(fitting)
        mine = width
        if kind in ("NONE", "CONCAT"):
            mine = draw.randint(1, features[name].width)
        start = draw.randint(0, features[name].width - mine)
        slices.append(Slice(name, start, start + mine))
    return OutConfig(kind, tuple(slices))


def random_features(draw: random.Random, config: FeatureConfigs, rows: int) -> Features:
    """Some features absent, some shared, rows empty, ids repeated, negative and huge."""
    found: Features = {}
    for name in [*config.names, "unknown"]:
        kind = draw.choice(["own", "own", "shared", "absent"])
        if kind == "absent":
            continue
        lists = [
            [
                draw.choice(HUGE) if draw.random() < 0.3 else draw.randint(-4, 8)
                for _ in range(draw.choice([0, 1, 2, 5, 70 if draw.random() < 0.05 else 3]))
            ]
            for _ in range(1 if kind == "shared" else rows)
        ]
        found[name] = (kind == "shared", Ragged.from_lists(lists))
    return found


class Vectors:
    """A vector for every feature and id: leaves of a graph, or random whole eighths."""

    def __init__(self, config: FeatureConfigs, seed: int) -> None:
        self.config, self.leaves = config, {}
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, name: str, key: int) -> Tensor:
        if (name, key) not in self.leaves:
            width = self.config.features[name].width
            values = torch.randint(-16, 16, (width,), generator=self._random).double() / 8
            self.leaves[name, key] = values.requires_grad_()
        return self.leaves[name, key]


@dataclass(frozen=True)
class Batch:
    """A batch, its indices, and the vectors each shard answered."""

    config: FeatureConfigs
    features: Features
    rows: int
    shards: int
    found: ShardedFids
    vectors: Vectors
    lists: list[Tensor]

    @property
    def index(self) -> dict[str, Any]:
        """What `fused_embedding_to_layout` takes beside vectors and configuration."""
        return {
            "fid_offset": self.found.fid_offset,
            "feature_offset": self.found.feature_offset,
            "nfl_offset": self.found.nfl_offset,
            "batch_size": self.rows,
            "num_shards": self.shards,
        }

    def leaves(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """The lists, fresh, to take gradients of."""
        return [one.detach().to(dtype).clone().requires_grad_() for one in self.lists]


def batch_of(
    seed: int,
    rows: int | None = None,
    shards: int | None = None,
    unique: bool | None = None,
    config: FeatureConfigs | None = None,
    one_width: bool = False,
) -> Batch:
    draw = random.Random(seed)
    rows = draw.choice([0, 1, 2, 5, 40]) if rows is None else rows
    shards = draw.choice([1, 2, 3, 5, 16, 300]) if shards is None else shards
    unique = draw.random() < 0.5 if unique is None else unique
    config = config or random_config(draw, one_width)
    features = random_features(draw, config, rows)
    found = shard_fids(features, rows, shards, config, unique)
    vectors = Vectors(config, seed)
    return Batch(config, features, rows, shards, found, vectors, look_up(found, config, vectors))


def grads_like(tensors: list[Tensor], seed: int = 0) -> list[Tensor]:
    """Gradients to feed: whole eighths, so that every sum is exact."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randint(-16, 16, one.shape, generator=generator) / 8).to(one.dtype)
        for one in tensors
    ]
