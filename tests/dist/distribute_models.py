"""Models and batches of the tests of `hr.distribute`, the same on one process and on many."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.nn.embedding_modules import collections_of
from hedgerow.nn.model_tables import routers_of
from tests.support import everything

SAMPLES = 12  # of a global batch: equal shares for 2, 3 and 4 ranks
MODES = ("continuous", "roundrobin", "hash_roundrobin")
Lists = dict[str, list[list[int]]]


def tables(modes: tuple[str, str, str]) -> list[hr.Table]:
    """Bags over three tables, one of them of two features, each with its own mode."""
    return [
        hr.Table("ads", 3, dist_type=modes[0], rows=40, pooling="mean"),
        hr.Table("item", 4, dist_type=modes[1], rows=40, features=["item", "history"]),
        hr.Table("user", 2, dist_type=modes[2], rows=40),
    ]


class Model(nn.Module):
    """Bags, a sequence, and a dense part if wanted."""

    def __init__(
        self, modes: tuple[str, str, str] = MODES, *, dense: bool = True, **defaults: Any
    ) -> None:
        super().__init__()
        self.bags = hr.EmbeddingBags(tables(modes), seed=1, **defaults)
        words = hr.Table("word", 3, dist_type=modes[0], rows=40, features=["text"])
        self.text = hr.Embeddings([words], seed=2, **defaults)
        torch.manual_seed(3)
        self.top = nn.Linear(16, 1) if dense else None

    def forward(self, batch: hr.IdBatch, with_text: bool = True) -> Tensor:
        """One number a sample, or all vectors side by side."""
        text = self.text(batch)["text"]
        sample = torch.repeat_interleave(torch.arange(batch.samples), text.lengths())
        values = text.values if with_text else text.values.detach()
        words = torch.zeros(batch.samples, 3).index_add(0, sample, values)
        vectors = torch.cat([*self.bags(batch).values(), words], 1)
        return vectors if self.top is None else self.top(vectors).squeeze(1)


def lists_of(step: int, samples: int = SAMPLES) -> Lists:
    """Equal ids in one share and in several, negative and very large ones, empty bags."""
    rng = random.Random(step)
    pool = [*range(24), -1, -7, 2**40, 2**40 + 3, 2**62 + 1]
    return {
        name: [rng.choices(pool, k=rng.choice(sizes)) for _ in range(samples)]
        for name, sizes in (
            ("ads", [1, 2, 4]),
            ("item", [1]),
            ("history", [0, 1, 3, 5]),
            ("user", [1]),
            ("text", [0, 2, 3]),
        )
    }


def batch_of(lists: Lists, rank: int = 0, ranks: int = 1) -> hr.IdBatch:
    """The share of one rank."""
    share = len(lists["user"]) // ranks
    return hr.IdBatch.from_lists(
        {name: rows[rank * share : (rank + 1) * share] for name, rows in lists.items()}
    )


def targets(step: int, rank: int = 0, ranks: int = 1) -> Tensor:
    """A number a sample, small multiples of 1/8."""
    generator = torch.Generator().manual_seed(step)
    every = torch.randint(-8, 9, (SAMPLES,), generator=generator) * 0.125
    return every.chunk(ranks)[rank]


def train(model: nn.Module, optimizer: Any, steps: range, rank: int = 0, ranks: int = 1) -> float:
    """Some steps of squared error on this rank's share; the last loss, of all ranks."""
    loss = torch.zeros(())
    for step in steps:
        out = model(batch_of(lists_of(step), rank, ranks))
        loss = (out - targets(step, rank, ranks)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return mean_over_ranks(loss.item())


def mean_over_ranks(number: float) -> float:
    if not dist.is_initialized():
        return number
    total = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def rows_of(model: nn.Module) -> dict[str, dict[int, tuple[Any, ...]]]:
    """Every row with its states, of this rank, by table."""
    return {
        name: everything(one.table(name))
        for one in collections_of(model)
        for name in one.store.names
    }


def owned(
    model: nn.Module, rows: dict[str, dict[int, tuple[Any, ...]]], rank: int, ranks: int
) -> dict[str, dict[int, tuple[Any, ...]]]:
    """Those of the rows of one process that a rank should have."""
    routers = routers_of(model, ranks)
    found = {}
    for name, of_table in rows.items():
        ids = torch.tensor(list(of_table), dtype=torch.int64)
        mine = ids[routers[name].owners(ids) == rank].tolist()
        found[name] = {i: of_table[i] for i in mine}
    return found
