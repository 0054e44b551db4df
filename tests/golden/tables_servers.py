"""Vectors of tables over N servers: equal ids, and Monolith's benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hedgerow.monolith.tables.on_servers import DistributedTable
from hedgerow.monolith.test_utils import (
    BENCHMARK_TABLE,
    benchmark_table,
    benchmark_table_config,
)
from hedgerow.ps.remote_shard import RemoteShard, connect
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.monolith_rules import MonolithSgd

from .runner import Case, take
from .tables_area import AREA, close, original
from .tables_factory import server_addresses


@contextmanager
def connected(count: int, config: TableConfig) -> Iterator[list[RemoteShard]]:
    with server_addresses(count) as servers:
        shards = connect(servers["ps"], {config.name: config})
        try:
            yield shards
        finally:
            for shard in shards:
                shard.close()


def equal_ids_on_servers(case: Case) -> None:
    c = case.take(("id", "optimizer", "config", "lr", "servers", "ids", "grads", "owner", "rows"))
    optimizer = original(c["optimizer"], c["config"])
    config = TableConfig("golden", (Segment(len(c["grads"][0]), Zeros(), optimizer),))
    with connected(c["servers"], config) as shards:
        table = DistributedTable(shards, config)
        table.apply_gradients(torch.tensor(c["ids"]), torch.tensor(c["grads"]), rates=[c["lr"]])
        for key, row in c["rows"].items():
            close(table.lookup(torch.tensor([int(key)])).rows, row, what=key)
        for server, shard in enumerate(shards):
            held = {i for part in shard.scan(0) for i in part.ids.tolist()}
            assert held == {int(key) for key, owner in c["owner"].items() if owner == server}


def _benchmark_config(lr: float, initializer: str, optimizer: str, dim: int) -> TableConfig:
    config = benchmark_table_config(dim)
    (segment,) = config.segments
    assert config.admit is None
    assert segment.optimizer == original(optimizer, {"learning_rate": lr})
    assert segment.init == {"zeros": Zeros()}[initializer]
    return config


@AREA.handles("benchmarks", "distributed")
def whole_benchmark(case: Case) -> None:
    c = case.take(
        (
            *("servers", "ids", "dim", "optimizer", "lr", "initializer", "filter"),
            *("lookup", "apply_gradients"),
        )
    )
    assert c["filter"] == "none"
    config = _benchmark_config(c["lr"], c["initializer"], c["optimizer"], c["dim"])
    look = take(c["lookup"], ("preload", "query", "expect", "variants", "overhead_run"))
    assert look["variants"] == ["dedup off", "dedup on"]
    learn = take(
        c["apply_gradients"],
        (
            *("preload", "query", "loss", "grad_each", "duplicates_per_id"),
            *("expect_after", "atol", "overhead_run"),
        ),
    )
    ids = torch.arange(c["ids"])
    query = ids // learn["duplicates_per_id"]
    with connected(c["servers"], config) as shards:
        table = benchmark_table(shards, c["dim"])
        rows = ids.float()[:, None].expand(-1, c["dim"]).contiguous()
        table.assign_add(ids, rows)
        for dedup in (False, True):
            found = benchmark_table(shards, c["dim"], dedup=dedup).lookup(query).rows_of()
            assert torch.equal(found, query.float()[:, None].expand(-1, c["dim"]))
        table.assign(ids, torch.ones(c["ids"], c["dim"]))
        _one_apply(table, query, learn["grad_each"], learn["expect_after"], learn["atol"])


def _one_apply(
    table: DistributedTable, query: torch.Tensor, grad: float, expected: float, atol: float
) -> None:
    rows = table.lookup(query).rows_of().clone().requires_grad_()
    (grad * rows).sum().backward()
    assert rows.grad is not None
    assert torch.equal(rows.grad, torch.full_like(rows, grad))
    table.apply_gradients(query, rows.grad)
    after = table.lookup(query).rows
    torch.testing.assert_close(after, torch.full_like(after, expected), atol=atol, rtol=0)


@AREA.handles("benchmarks", "small_check")
def small_benchmark(case: Case) -> None:
    c = case.take(
        (
            *("servers", "ids", "dim", "expect_lookup_first", "expect_lookup_last"),
            *("expect_after_gradients", "touched_ids", "untouched_value"),
        )
    )
    config, ids = benchmark_table_config(c["dim"]), torch.arange(c["ids"])
    assert config.name == BENCHMARK_TABLE
    assert config.segments[0].optimizer == MonolithSgd(learning_rate=1.0)
    query = ids // 2
    with connected(c["servers"], config) as shards:
        table = benchmark_table(shards, c["dim"])
        table.assign_add(ids, ids.float()[:, None].expand(-1, c["dim"]).contiguous())
        found = table.lookup(query).rows_of()
        first = c["expect_lookup_first"]
        assert found[: len(first), 0].tolist() == first
        assert found[-1].tolist() == [c["expect_lookup_last"]] * c["dim"]
        table.assign(ids, torch.ones(c["ids"], c["dim"]))
        _one_apply(table, query, 0.3, c["expect_after_gradients"], 1e-6)
        touched = query.unique()
        assert len(touched) == c["touched_ids"]
        rest = table.lookup(ids[c["touched_ids"] :]).rows
        assert rest.tolist() == [c["untouched_value"]] * len(rest)
