"""Small trained models, and their batches as the inputs of a request."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import hedgerow as hr

FEATURES = ("user", "item", "history")


def tables() -> list[hr.Table]:
    """Two tables of three features, of which two share."""
    return [
        hr.Table("user", 8, pooling="mean"),
        hr.Table("item", 8, features=["item", "history"], dist_type="roundrobin"),
    ]


def trained(model: nn.Module, steps: int = 4) -> nn.Module:
    """After some steps of clicks."""
    loss = nn.BCEWithLogitsLoss()
    for dense, ids, clicked in hr.data.clicks(batch_size=64, steps=steps):
        loss(model(dense, ids), clicked.float()).backward()
    return model.eval()


def batch(samples: int, seed: int = 0) -> tuple[Tensor, hr.IdBatch]:
    """Bags of 0 to 3 ids, of which a trained model knows about three of four."""
    draw = torch.Generator().manual_seed(seed)
    _, seen, _ = next(iter(hr.data.clicks(batch_size=64, steps=1)))
    columns: dict[str, hr.Ragged | Tensor] = {}
    for name in FEATURES:
        lengths = torch.randint(0, 4, (samples,), generator=draw)
        splits = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        known = seen.feature(name).values
        ids = known[torch.randint(len(known), (int(splits[-1]),), generator=draw)]
        ids[torch.rand(len(ids), generator=draw) < 0.25] = -5
        columns[name] = hr.Ragged(ids, splits)
    return torch.rand(samples, 4, generator=draw), hr.IdBatch.from_dict(columns)


def request(dense: Tensor | None, ids: hr.IdBatch) -> dict[str, Tensor]:
    """A batch as the inputs of `serving_default`."""
    inputs = {} if dense is None else {"dense": dense}
    for name in ids.names:
        inputs[name] = ids.feature(name).values
        inputs[f"{name}_lengths"] = ids.feature(name).lengths()
        weights = ids.weights_of(name)
        if weights is not None:
            inputs[f"{name}_weights"] = weights
    return inputs
