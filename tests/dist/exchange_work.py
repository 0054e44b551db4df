"""What every rank of the exchange tests does: all options against one process, then the faults."""

from __future__ import annotations

import datetime
import itertools
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hedgerow.core.errors import ConfigError, ExchangeError
from hedgerow.routing.router import Router
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.sharding.exchange import Exchange
from hedgerow.tables.initializers import Constant
from hedgerow.tables.multi.host_tables import HostTables
from tests.sharding.test_local_exchange import send_all
from tests.sharding.worlds import (
    Batch,
    configs,
    dyadic,
    joined,
    joined_grads,
    keys_of,
)
from tests.support import everything


def work(rank: int) -> None:
    """All of it, in one life of the processes; the last rank dies in the end."""
    group = dist.group.WORLD
    assert group is not None
    uneven_and_empty_parts(group)
    a_group_of_others()
    ranks = dist.get_world_size()
    for wire in ("fp32", "bf16", "fp16"):
        for reduce, dedup, merge, by_lookup in itertools.product(
            ("sum", "mean"), *[(True, False)] * 3
        ):
            options = {"reduce": reduce, "dedup": dedup, "merge_across_ranks": merge}
            as_one_process(group, wire, by_lookup, options)
    a_rank_that_comes_too_late(rank, ranks)
    dist.barrier()
    if rank == ranks - 1:
        os._exit(3)
    a_dead_peer(group)


def uneven_and_empty_parts(group: dist.ProcessGroup) -> None:
    exchange = Exchange(group)
    wanted = [q for q in range(exchange.ranks) for _ in range(q + exchange.rank)]
    assert send_all(exchange) == (wanted, [q + 0.5 for q in wanted])
    sent = exchange.counters.read("ids_sent_bytes")
    assert sent == 8 * sum(exchange.rank + q for q in range(exchange.ranks) if q != exchange.rank)
    nothing, none = torch.empty(0, dtype=torch.int64), [0] * exchange.ranks
    assert len(exchange.ids(nothing, none, none)) == 0


def a_group_of_others() -> None:
    first = dist.new_group([0])
    if dist.get_rank() == 0:
        assert Exchange(first).ranks == 1
        return
    with pytest.raises(ConfigError, match="not a rank of the group"):
        Exchange(first)


def batches_of(ranks: int, step: int) -> list[Batch]:
    """Equal and negative ids, on one rank and on several; the last rank has none in step 1."""
    found = [[[5, -1, 5, rank, 2**40 + rank], [7, rank % 2, 7]] for rank in range(ranks)]
    if step == 1:
        found[-1] = [[], []]
    return found


def as_one_process(
    group: dist.ProcessGroup, wire: str, by_lookup: bool, options: dict[str, Any]
) -> None:
    exchange = Exchange(group, wire=wire)
    rank, ranks = exchange.rank, exchange.ranks
    made = configs(init=Constant(0.25))
    routers = [Router("hash_roundrobin", ranks), Router("roundrobin", ranks)]
    tables = AllToAllTables(HostTables(made), routers, exchange, **options)
    alone = HostTables(made)
    mean = options["reduce"] == "mean"
    unit = 0.125 * ranks if mean else 0.125
    for step in range(3):
        batches = batches_of(ranks, step)
        grads = [dyadic(batch, seed, unit) for seed, batch in enumerate(batches)]
        keys = keys_of(batches[rank])
        found = tables.lookup(keys, missing="training", step=step)
        wanted = alone.lookup(keys, missing="training", step=step)
        # Rows are small multiples of 1/16: bf16 and fp16 hold them, and the gradients, exactly.
        assert torch.equal(found.rows, wanted.rows), (wire, options, step)
        at = found if by_lookup else keys
        tables.apply_gradients(at, grads[rank], step=step, ts=step)
        total = joined_grads(batches, grads) / (ranks if mean else 1)
        alone.apply_gradients(keys_of(joined(batches)), total, step=step, ts=step)
    for k, router in enumerate(routers):
        owned = everything(alone.table(k))
        ids = torch.tensor(list(owned))
        mine = router.owners(ids) == rank
        assert everything(tables.table(k)) == {i: owned[i] for i in ids[mine].tolist()}


def a_rank_that_comes_too_late(rank: int, ranks: int) -> None:
    patience = dist.new_group(timeout=datetime.timedelta(seconds=1), backend="gloo")
    if rank == ranks - 1:
        return  # never comes to this exchange
    expect_failure(Exchange(patience), "counts")


def a_dead_peer(group: dist.ProcessGroup) -> None:
    exchange = Exchange(group)
    ranks = exchange.ranks
    tables = AllToAllTables(
        HostTables(configs(1)), [Router("roundrobin", ranks)], exchange, reduce="sum"
    )

    def read() -> None:
        for _ in range(3):  # the first may still reach the dying rank
            tables.lookup(torch.arange(8))

    with pytest.raises(ExchangeError, match=f"on rank {exchange.rank} of {ranks}") as caught:
        read()
    assert "the exchange of " in str(caught.value)
    assert caught.value.__cause__ is not None
    assert str(caught.value.__cause__) in str(caught.value)


def expect_failure(exchange: Exchange, what: str) -> None:
    said = f"the exchange of {what} failed on rank {exchange.rank}"
    with pytest.raises(ExchangeError, match=said):
        exchange.counts(torch.zeros(exchange.ranks, dtype=torch.int64))
