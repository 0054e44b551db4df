"""Random models against `nn.EmbeddingBag`: vectors, rows after some steps, gradients of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr

CASES = 260
IDS = 9  # few, so that ids repeat in bags, batches and features


@dataclass(frozen=True, slots=True)
class Twin:
    """One table here and there."""

    name: str
    dim: int
    pooling: str
    features: tuple[str, ...]
    dense: nn.EmbeddingBag


class Case:
    """Tables of several widths, rules and features, with rows of few different values: ties."""

    def __init__(self, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.poolings = ("sum", "mean", "max", "sqrtn")
        self.weighted = self.chance(3)
        self.twins = [self._twin(number) for number in range(self.whole(1, 3))]
        self.features = [name for twin in self.twins for name in twin.features]

    def whole(self, least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (1,), generator=self.draw))

    def chance(self, one_in: int) -> bool:
        return self.whole(1, one_in) == 1

    def _twin(self, number: int) -> Twin:
        dim, pooling = self.whole(1, 6), self.poolings[self.whole(0, 3)]
        rows = torch.randint(-1, 2, (IDS, dim), generator=self.draw) * 0.5
        dense = nn.EmbeddingBag.from_pretrained(
            rows,
            freeze=False,
            mode="sum" if pooling == "sqrtn" or self.weighted else pooling,
            include_last_offset=True,
        )
        features = tuple(f"t{number}.{i}" for i in range(self.whole(1, 3)))
        return Twin(f"t{number}", dim, "sum" if self.weighted else pooling, features, dense)

    def ours(self) -> hr.EmbeddingBags:
        tables = [
            hr.Table(twin.name, twin.dim, features=twin.features, pooling=twin.pooling)
            for twin in self.twins
        ]
        bags = hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=0.25))
        for twin in self.twins:
            bags.table(twin.name).assign(torch.arange(IDS), twin.dense.weight.detach().clone())
        return bags

    def batch(self) -> hr.IdBatch:
        """Bags of 0 to 4 ids, or one id each, or one length for all: a matrix."""
        samples, form = self.whole(1, 6), self.whole(0, 2)
        columns: dict[str, Any] = {}
        for name in self.features:
            if form == 2:
                matrix = torch.randint(IDS, (samples, self.whole(1, 3)), generator=self.draw)
                columns[name] = hr.IdBatch.from_padded({name: matrix}, padding=-1).feature(name)
                continue
            lengths = [1 if form == 1 else self.whole(0, 4) for _ in range(samples)]
            splits = torch.tensor([0, *lengths]).cumsum(0)
            ids = torch.randint(IDS, (sum(lengths),), generator=self.draw)
            columns[name] = hr.Ragged(ids, splits)
        weights = {
            name: torch.randint(-2, 3, (len(c.values),), generator=self.draw) * 0.5
            for name, c in columns.items()
        }
        names = self.features[:: 1 if self.chance(2) else -1]
        return hr.IdBatch.from_dict(
            {name: columns[name] for name in names}, weights if self.weighted else None
        )

    def theirs(self, twin: Twin, batch: hr.IdBatch, name: str, weights: Tensor | None) -> Tensor:
        ragged = batch.feature(name)
        found = twin.dense(ragged.values, ragged.row_splits, weights)
        if twin.pooling != "sqrtn":
            return found
        return found / ragged.lengths().clamp(min=1).sqrt().unsqueeze(1)


@pytest.mark.parametrize("part", range(10))
def test_random_models_learn_as_embedding_bags_do(part: int) -> None:
    for seed in range(part, CASES, 10):
        _compare(Case(seed), seed)


def _compare(case: Case, seed: int) -> None:
    ours = case.ours()
    optimizer = torch.optim.SGD([twin.dense.weight for twin in case.twins], lr=0.25)
    for _ in range(4):
        batch = case.batch()
        mine = None if batch.weights is None else batch.weights.clone().requires_grad_()
        given = hr.IdBatch(batch.names, batch.values, batch.offsets, mine)
        its = None if batch.weights is None else batch.weights.clone().requires_grad_()
        shadow = hr.IdBatch(batch.names, batch.values, batch.offsets, its)
        found = ours(given)
        optimizer.zero_grad()
        total = []
        for twin in case.twins:
            for name in twin.features:
                wanted = case.theirs(twin, batch, name, shadow.weights_of(name))
                torch.testing.assert_close(found[name], wanted, msg=f"case {seed}, {name}")
                upstream = torch.randint(-3, 4, wanted.shape, generator=case.draw).float()
                total += [(found[name] * upstream).sum(), (wanted * upstream).sum()]
        torch.stack(total).sum().backward()
        optimizer.step()
        for twin in case.twins:
            rows = ours.table(twin.name).entries(torch.arange(IDS)).rows
            torch.testing.assert_close(rows, twin.dense.weight.detach(), msg=f"case {seed}")
        if mine is not None and its is not None:
            torch.testing.assert_close(mine.grad, its.grad, msg=f"weights of case {seed}")
