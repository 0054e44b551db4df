"""The same numbers as `nn.EmbeddingBag` with torch's optimizers, over many steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.tables.store import TableKeys

IDS, DIM, STEPS, SAMPLES = 40, 5, 100, 16

OPTIMIZERS: dict[str, tuple[Callable[[], object], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (lambda: hr.Sgd(lr=0.125), lambda p: torch.optim.SGD(p, lr=0.125)),
    "adagrad": (
        lambda: hr.Adagrad(lr=0.1, initial_accumulator_value=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    ),
    "adam": (
        lambda: hr.Adam(lr=0.01, bias_correction="row"),
        lambda p: torch.optim.Adam(p, lr=0.01),
    ),
}


def _batch(generator: torch.Generator, *, every_id: bool) -> dict[str, list[list[int]]]:
    def bag() -> list[int]:
        size = int(torch.randint(0, 5, (1,), generator=generator))
        return torch.randint(IDS, (size,), generator=generator).tolist()

    features = {name: [bag() for _ in range(SAMPLES)] for name in ("item", "history")}
    if every_id:  # Adam's bias correction is per row
        features["item"][0] = list(range(IDS))
    return features


def _loss(vectors: list[torch.Tensor], goal: torch.Tensor) -> torch.Tensor:
    return torch.stack([(v * goal).sum() for v in vectors]).sum() / 16


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("pooling", ["sum", "mean", "weighted"])
def test_bags_equal_torch(name: str, pooling: str) -> None:
    ours_rule, torch_rule = OPTIMIZERS[name]
    generator = torch.Generator().manual_seed(3)
    mode = "mean" if pooling == "mean" else "sum"
    table = hr.Table("item", DIM, features=["item", "history"], pooling=mode)
    bags = hr.EmbeddingBags([table], init=hr.Uniform(0.3), optimizer=ours_rule())
    first = (
        bags.store.lookup(TableKeys.of_one(torch.arange(IDS)), missing="initializer")
        .rows_of()
        .clone()
    )
    if name == "sgd":  # multiples of 1/64: sums are exact, so are results
        first = (first * 64).round() / 64
        bags.store.table(0).assign(torch.arange(IDS), first)
    dense = nn.EmbeddingBag.from_pretrained(first.clone(), freeze=False, mode=mode)
    optimizer = torch_rule(dense.parameters())
    for _ in range(STEPS):
        features = _batch(generator, every_id=name == "adam")
        weights = None
        if pooling == "weighted":
            weights = {
                f: [
                    [float(w) / 4 for w in torch.randint(1, 5, (len(bag),), generator=generator)]
                    for bag in rows
                ]
                for f, rows in features.items()
            }
        batch = hr.IdBatch.from_lists(features, weights)
        goal = torch.randint(-2, 3, (SAMPLES, DIM), generator=generator).float()
        ours = bags(batch)
        _loss(list(ours.values()), goal).backward()

        optimizer.zero_grad()
        theirs = []
        for feature in ("item", "history"):
            ragged = batch.feature(feature)
            theirs.append(dense(ragged.values, ragged.row_splits[:-1], batch.weights_of(feature)))
        _loss(theirs, goal).backward()
        optimizer.step()
        for one, other in zip(ours.values(), theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    rows = bags.store.lookup(TableKeys.of_one(torch.arange(IDS))).rows_of()
    exact = name == "sgd" and pooling != "mean"
    torch.testing.assert_close(
        rows, dense.weight.detach(), rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6
    )
