"""What every rank does in the tests of `hr.prefetch` over ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import hedgerow as hr
from hedgerow.nn.embedding_modules import collections_of
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.sharding.exchange import Exchange

from .distribute_models import rows_of
from .distribute_work import made


def own_batch(step: int) -> hr.IdBatch:
    """A share whose ids no other step has; ranks have some in common."""
    rank = dist.get_rank()
    ids = [[1000 * step + 10 * (rank + i), 1000 * step + 7] for i in range(6)]
    return hr.IdBatch.from_lists(dict.fromkeys(("ads", "item", "history", "user", "text"), ids))


def train(model: nn.Module, batches: Any) -> list[float]:
    losses = []
    for batch in batches:
        loss = model(batch).square().mean()
        loss.backward()
        losses.append(loss.item())
    return losses


def as_without_prefetch() -> None:
    """Losses and rows of every rank, bit for bit, at several depths."""
    hashed = ("hash_roundrobin",) * 3
    plain = hr.distribute(made(hashed))
    wanted = train(plain, [own_batch(step) for step in range(8)])
    for depth in (1, 3):
        ahead = hr.distribute(made(hashed))
        reader = hr.prefetch(ahead, (own_batch(step) for step in range(8)), depth=depth)
        assert train(ahead, reader) == wanted
        assert rows_of(ahead) == rows_of(plain)
        assert reader.counters.read("read_ahead") == 2 * (8 - depth - 1)  # two collections


class SlowExchange(Exchange):
    """Rows that come 20 ms later, as over a long way: nobody computes meanwhile."""

    def _transfer(self, what: str, *args: Any) -> Any:
        if what != "floats":
            return super()._transfer(what, *args)
        arriving, finish = super()._transfer(what, *args)

        def later() -> None:
            time.sleep(0.02)
            finish()

        return arriving, later


def step_seconds(depth: int) -> float:
    """The median step of a model whose rows travel for 20 ms and whose dense part takes 20."""
    model = hr.EmbeddingBags([hr.Table("user", 4)], optimizer=hr.Sgd(lr=0.5))
    hr.distribute(model)
    for one in collections_of(model):
        assert isinstance(one.store, AllToAllTables)
        one.store.exchange = SlowExchange(dist.new_group(backend="gloo"))  # pyright: ignore[reportArgumentType]
    times = []

    def batches() -> Iterator[hr.IdBatch]:
        for step in range(20):
            yield hr.IdBatch.from_lists({"user": [[step], [step + 1]]})

    for batch in hr.prefetch(model, batches(), depth=depth):
        start = time.perf_counter()
        vectors = model(batch)["user"]
        time.sleep(0.02)
        vectors.sum().backward()
        times.append(time.perf_counter() - start)
    return statistics.median(times[4:])


def what_prefetch_saves() -> float:
    """Seconds that the median step is shorter with the next batch on the way."""
    saved = step_seconds(0) - step_seconds(1)
    every = torch.tensor([saved])
    dist.all_reduce(every, dist.ReduceOp.MIN)
    return every.item()


def a_source_that_fails_on_rank_1(rank: int) -> None:
    """Early, while batches before it are still read as they come."""
    model = hr.distribute(made())

    def batches() -> Iterator[hr.IdBatch]:
        for step in range(8):
            if rank == 1 and step == 4:
                raise OSError("the disk is gone")
            yield own_batch(step)

    train(model, hr.prefetch(model, batches(), depth=2))
