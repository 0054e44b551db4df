"""A small model and its batches, for tests that train it in several places."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import hedgerow as hr
from hedgerow.data.source import Batch
from hedgerow.nn.embedding_modules import collections_of

BATCH, STEPS = 64, 12


def model() -> hr.models.DeepFM:
    torch.manual_seed(5)
    tables = [
        hr.Table("user", 8, rows=4000),
        hr.Table("item", 8, rows=4000, features=["item", "seen"], pooling="mean"),
    ]
    return hr.models.DeepFM(tables, dense=4, hidden=(16,), optimizer=hr.Adagrad(lr=0.1), seed=3)


def batches(steps: int = STEPS, samples: int = BATCH) -> Iterator[Batch]:
    random = torch.Generator().manual_seed(7)
    for _ in range(steps):
        columns = {}
        for name, most in (("user", 1), ("item", 2), ("seen", 5)):
            sizes = torch.randint(1, most + 1, (samples,), generator=random)
            ids = torch.randint(0, 200, (int(sizes.sum()),), generator=random)
            columns[name] = hr.Ragged(ids, torch.nn.functional.pad(sizes.cumsum(0), (1, 0)))
        labels = torch.randint(0, 2, (samples,), generator=random).float()
        dense = torch.randn(samples, 4, generator=random)
        yield Batch(dense, hr.IdBatch.from_dict(columns), labels)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> torch.Tensor:
    logits = model(batch.dense, batch.ids)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def rows(model: torch.nn.Module) -> dict[str, dict[int, list[float]]]:
    """All rows of this process by table and id."""
    found: dict[str, dict[int, list[float]]] = {}
    for one in collections_of(model):
        for name in one.store.names:
            mine = found.setdefault(name, {})
            for part in one.table(name).scan():
                mine.update(zip(part.ids.tolist(), part.rows.tolist(), strict=True))
    return found


def same_rows(
    ours: dict[str, dict[int, list[float]]], model: dict[str, dict[int, list[float]]]
) -> None:
    """Equal ids, rows equal up to the order of sums."""
    assert ours.keys() == model.keys()
    for name, wanted in model.items():
        assert ours[name].keys() == wanted.keys()
        ids = sorted(wanted)
        found = torch.tensor([ours[name][i] for i in ids])
        torch.testing.assert_close(
            found, torch.tensor([wanted[i] for i in ids]), rtol=1e-3, atol=1e-4
        )
