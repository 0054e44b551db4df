"""What the tests of sharding share: tables, batches of every rank, and one process as reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hedgerow.routing.router import Router
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.sharding.exchange import LocalExchange
from hedgerow.tables.admission import Count
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Initializer, Uniform
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.optimizers import Optimizer, Sgd
from hedgerow.tables.store import TableKeys
from tests.support import everything

T = TypeVar("T")
Batch = list[list[int]]  # ids by table
DIMS = (3, 1, 4)


def configs(
    tables: int = 2,
    *,
    optimizer: Optimizer | None = None,
    admit: int = 1,
    init: Initializer | None = None,
) -> dict[str, TableConfig]:
    """Tables of different widths whose rows are born with values that are not 0."""
    optimizer = optimizer or Sgd(lr=0.5)
    rule = Count(admit) if admit > 1 else None
    init = init or Uniform(0.5)
    return {
        f"t{k}": TableConfig("any", (Segment(DIMS[k], init, optimizer),), seed=k, admit=rule)
        for k in range(tables)
    }


def keys_of(batch: Batch) -> TableKeys:
    ids = torch.tensor([i for table in batch for i in table], dtype=torch.int64)
    splits = [0]
    for table in batch:
        splits.append(splits[-1] + len(table))
    return TableKeys(ids, tuple(splits))


def dyadic(batch: Batch, seed: int, unit: float = 0.125) -> Tensor:
    """Gradients whose sums are exact."""
    floats = sum(len(ids) * dim for ids, dim in zip(batch, DIMS, strict=False))
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, (floats,), generator=generator) * unit


def on_ranks(
    ranks: int,
    work: Callable[[AllToAllTables], T],
    made: dict[str, TableConfig],
    dist_type: str = "hash_roundrobin",
    wire: str = "fp32",
    **options: Any,
) -> list[T]:
    """What `work` gives on every rank of a process."""

    def one(exchange: LocalExchange) -> T:
        routers = [Router(dist_type, ranks)] * len(made)
        return work(AllToAllTables(HostTables(made), routers, exchange, **options))

    return LocalExchange.run(ranks, one, wire=wire)


def contents(stores: Sequence[HostTables | AllToAllTables]) -> list[dict[int, tuple[Any, ...]]]:
    """All rows of each table, of all shards; an id on two shards is an error."""
    found: list[dict[int, tuple[Any, ...]]] = []
    for k in range(len(stores[0].names)):
        rows: dict[int, tuple[Any, ...]] = {}
        for store in stores:
            mine = everything(store.table(k))
            assert not rows.keys() & mine.keys()
            rows |= mine
        found.append(rows)
    return found


def joined(batches: Sequence[Batch]) -> Batch:
    """The batches of all ranks as one: in each table rank after rank."""
    return [[i for batch in batches for i in batch[k]] for k in range(len(batches[0]))]


def joined_grads(batches: Sequence[Batch], grads: Sequence[Tensor]) -> Tensor:
    """Their gradients in the same order."""
    by_rank = [
        g.split([len(ids) * dim for ids, dim in zip(batch, DIMS, strict=False)])
        for batch, g in zip(batches, grads, strict=True)
    ]
    return torch.cat([g[k] for k in range(len(batches[0])) for g in by_rank])
