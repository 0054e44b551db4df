"""Models of max pooling with many ties, and what every rank does with them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

import hedgerow as hr
from hedgerow.nn.model_tables import routers_of
from tests.support import bits

SAMPLES = 12


def made() -> hr.EmbeddingBags:
    """One table of one column, rows of zeros."""
    table = hr.Table("t", 1, pooling="max")
    return hr.EmbeddingBags([table], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))


def model(
    clip: hr.ClipRow | None = None, dims: tuple[int, int, int] = (3, 1, 2)
) -> hr.EmbeddingBags:
    """Zeros to begin with: every value of a bag is the largest."""
    tables = [
        hr.Table("a", dims[0], features=["a", "a2"], pooling="max"),
        hr.Table("b", dims[1], pooling="max"),
        hr.Table("c", dims[2], pooling="mean"),
    ]
    return hr.EmbeddingBags(tables, init=hr.Zeros(), optimizer=hr.Sgd(lr=0.5), seed=1, clip=clip)


def batch(step: int, rank: int = 0, ranks: int = 1) -> hr.IdBatch:
    """One rank's share of the samples of a step; ids repeat within bags."""
    draw = torch.Generator().manual_seed(step)
    lists: dict[str, list[list[int]]] = {}
    share = SAMPLES // ranks
    for name in ("a", "a2", "b", "c"):
        sizes = torch.randint(0, 5, (SAMPLES,), generator=draw).tolist()
        rows = [torch.randint(0, 5, (size,), generator=draw).tolist() for size in sizes]
        lists[name] = rows[rank * share : (rank + 1) * share]
    return hr.IdBatch.from_lists(lists)


def loss(vectors: dict[str, Tensor], step: int, rank: int = 0, ranks: int = 1) -> Tensor:
    """Gradients of both signs, small multiples of 1/4: their sums are exact."""
    draw = torch.Generator().manual_seed(100 + step)
    share, total = SAMPLES // ranks, torch.zeros(())
    for name in ("a", "a2", "b", "c"):
        found = vectors[name]
        upstream = torch.randint(-4, 5, (SAMPLES, found.shape[1]), generator=draw) * 0.25
        mine = upstream[rank * share : (rank + 1) * share].to(found.device)
        total = total.to(found.device) + (found * mine).sum()
    return total


def rows_of(bags: hr.EmbeddingBags, name: str) -> dict[int, object]:
    """The bits of every row by id."""
    parts = list(bags.table(name).scan())
    return {i: bits(part.rows[k]) for part in parts for k, i in enumerate(part.ids.tolist())}


def as_on_one_process() -> None:
    """Every rank's rows are those that one process has after the same steps."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    alone, many = model(), model()
    hr.distribute(many, reduce="sum")
    for step in range(4):
        loss(alone(batch(step)), step).backward()
        loss(many(batch(step, rank, ranks)), step, rank, ranks).backward()
    for name in ("a", "b"):
        own, wanted = rows_of(many, name), rows_of(alone, name)
        ids = torch.tensor(sorted(wanted))
        mine = ids[routers_of(many, ranks)[name].owners(ids) == rank].tolist()
        assert own == {i: wanted[i] for i in mine}, (name, rank)
