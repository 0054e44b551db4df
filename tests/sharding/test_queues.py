"""Queues around a batch: rows as old as they are deep, and updates as late."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow.monolith.tables.multi_type import NativeMultiTable
from hedgerow.monolith.tables.over_ranks import AllToAllMultiTypeTable, QueueDepths
from hedgerow.sharding.exchange import Exchange, LocalExchange
from hedgerow.sharding.pipeline import Item
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Sgd

CONFIGS = {"1": TableConfig("any", (Segment(1, Zeros(), Sgd(lr=lambda step: step + 1.0)),))}
IDS = torch.tensor([4, 5, 4])
STEPS = 4


def table_of(exchange: Exchange, updates: Exchange, queues: dict[str, Any]) -> Any:
    local = NativeMultiTable(CONFIGS)
    return AllToAllMultiTypeTable(exchange.ranks, local, exchange, queues, updates=updates)


def train(table: Any) -> list[float]:
    """The row of id 4 that each step saw; its gradient is 1 a step and rank."""
    seen = []
    source = [Item({"1": IDS}, step=step) for step in range(STEPS)]
    with table.queues as queues, queues.ahead(source) as ahead:
        for item in ahead:
            seen.append(float(item.value.rows["1"][0, 0]))
            grads = {"1": torch.tensor([[0.25], [1.0], [0.75]])}
            table.put_gradients(item.value, grads, step=item.step)
    return seen


@pytest.mark.parametrize(
    "queues", [{}, {"enable_async_optimize": 1}, {"enable_pipelined_bwda2a": 2}]
)
def test_updates_come_as_late_as_the_queue_is_deep(queues: dict[str, int]) -> None:
    late = sum(queues.values())
    table = table_of(Exchange(), Exchange(), queues)
    done = [0.0, *(-sum(range(1, n + 1)) for n in range(1, STEPS + 1))]  # rate step + 1
    assert train(table) == [done[max(step - late, 0)] for step in range(STEPS)]
    assert float(table.lookup({"1": IDS})["1"][0, 0]) == done[-1]  # all is drained


@pytest.mark.parametrize(
    "queues",
    [
        {"embedding_prefetch_capacity": 2},
        {"enable_pipelined_fwda2a": 1, "embedding_prefetch_capacity": 1},
        dict.fromkeys(("enable_pipelined_fwda2a", "enable_async_optimize"), 1),
    ],
)
def test_reading_ahead_over_ranks_loses_nothing(queues: dict[str, int]) -> None:
    reads, updates = LocalExchange.of(2), LocalExchange.of(2)

    def work(exchange: LocalExchange) -> tuple[list[float], float]:
        table = table_of(reads[exchange.rank], updates[exchange.rank], queues)
        seen = train(table)
        exchange.counts(torch.zeros(2, dtype=torch.int64))  # both have drained
        return seen, float(table.lookup({"1": IDS})["1"][0, 0])

    for seen, last in LocalExchange.run(2, work):
        assert last == -2.0 * sum(range(1, STEPS + 1))  # a step a rank
        assert seen[0] == 0.0
        assert len(seen) == STEPS


def test_all_gradients_or_none() -> None:
    configs = {**CONFIGS, "2": CONFIGS["1"]}
    table = AllToAllMultiTypeTable(1, NativeMultiTable(configs), Exchange())
    (item,) = table.queues.ahead([Item({"1": IDS, "2": IDS})])
    with pytest.raises(ValueError, match="give all"):
        table.put_gradients(item.value, {"1": torch.ones(3, 1)})


def test_wishes_for_queues() -> None:
    assert QueueDepths.of(None) == QueueDepths.of({"post_push": None}) == QueueDepths()
    for wrong in ({"post-push": 1}, {"post_push": -1}, {"post_push": 0.5}, [1]):
        with pytest.raises(ValueError, match="queue_configs"):
            QueueDepths.of(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="post_push"):
        table_of(Exchange(), Exchange(), {"post_push": 1})
    with pytest.raises(ValueError, match=r"shard_num is 2.*1 ranks"):
        AllToAllMultiTypeTable(2, NativeMultiTable(CONFIGS), Exchange())
