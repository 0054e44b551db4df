"""What a publisher reads of models on real servers: rows changed are given once, none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import InputError
from hedgerow.nn.embedding_modules import servers_of
from hedgerow.nn.model_tables import routers_of
from hedgerow.serving.publish import row_sources
from hedgerow.sync.source import HostSource, RowSource

from ..ps.servers import ServerProcess

TABLES = [hr.Table("item", 3), hr.Table("user", 2, dist_type="roundrobin")]


def fresh() -> hr.EmbeddingBags:
    return hr.EmbeddingBags(TABLES, optimizer=hr.Sgd(lr=0.5), init=hr.Zeros())


def learn(model: nn.Module, ids: list[int]) -> None:
    """Every row of these ids moves."""
    batch = hr.IdBatch.from_lists({"item": [ids], "user": [ids]})
    sum(out.sum() for out in model(batch).values()).backward()


@contextmanager
def on_servers(count: int, **settings: Any) -> Iterator[tuple[nn.Module, list[ServerProcess]]]:
    started: list[ServerProcess] = []
    try:
        started.extend(ServerProcess(i, count, **settings) for i in range(count))
        model = hr.distribute(fresh(), servers=[one.address for one in started])
        group = servers_of(model)
        assert group is not None
        try:
            yield model, started
        finally:
            group.close()
    finally:
        for one in started:
            one.reap()


def taken(source: RowSource) -> dict[str, list[int]]:
    found = source.take()
    assert not any(one.whole_table for one in found.values())
    return {name: sorted(one.ids.tolist()) for name, one in found.items()}


def rows_of(sources: list[RowSource], table: str) -> dict[int, list[float]]:
    """All rows, as a full resync reads them."""
    rows: dict[int, list[float]] = {}
    for source in sources:
        for ids in source.all_ids(table):
            read = source.read(table, ids)
            assert read.present.all()
            rows.update(zip(ids.tolist(), read.rows.tolist(), strict=True))
    return rows


def test_a_model_on_two_servers_has_two_sources_each_with_its_own_rows() -> None:
    ids = list(range(40))
    with on_servers(2) as (model, _):
        sources = row_sources(model)
        assert [(one.shard, one.shards) for one in sources] == [(0, 2), (1, 2)]
        routers = routers_of(model, 2)
        for source in sources:
            assert [(t.name, t.dim) for t in source.tables] == [("item", 3), ("user", 2)]
            assert {t.name: t.router for t in source.tables} == routers
        learn(model, ids)
        for source in sources:
            for name, found in taken(source).items():
                owners = routers[name].owners(torch.tensor(ids)).tolist()
                mine = [key for key in ids if owners[key] == source.shard]
                assert found == mine
            assert taken(source) == {"item": [], "user": []}
        before = [source.incarnation for source in sources]
        learn(model, [3, 4])
        assert sorted(key for one in sources for key in taken(one)["user"]) == [3, 4]
        assert [source.incarnation for source in sources] == before
        assert rows_of(sources, "user")[3] == [-1.0, -1.0]
        read = sources[1].read("user", torch.tensor([3, 99]))
        assert read.rows.tolist() == [[-1.0, -1.0], [0.0, 0.0]]
        assert read.present.tolist() == [True, False]
        with pytest.raises(KeyError, match="known"):
            sources[0].read("none", torch.tensor([1]))
        for source in sources:
            source.close()


def test_a_killed_server_shows_another_incarnation_and_nothing_is_lost(tmp_path: Path) -> None:
    with on_servers(2, checkpoint=tmp_path, durability="log") as (model, started):
        sources = row_sources(model)
        learn(model, list(range(20)))
        for source in sources:
            source.take()
        before = [source.incarnation for source in sources]
        learn(model, list(range(10, 30)))  # marked, and never taken before the crash
        started[1].crash()
        learn(model, [5])
        marks = [source.take() for source in sources]
        assert sources[0].incarnation == before[0]
        assert sources[1].incarnation != before[1]
        assert all(one.whole_table for one in marks[1].values())
        wanted = {key: [-0.5 * (1 + (10 <= key < 20) + (key == 5))] * 2 for key in range(30)}
        assert rows_of(sources, "user") == wanted
        again = sources[1].incarnation
        learn(model, [7])
        assert sorted(key for one in sources for key in taken(one)["user"]) == [7]
        assert sources[1].incarnation == again
        for source in sources:
            source.close()


def test_a_server_that_is_away_is_an_error_and_what_was_taken_is_not_lost(tmp_path: Path) -> None:
    with on_servers(1, checkpoint=tmp_path, durability="log") as (model, started):
        (source,) = row_sources(model)
        tables: Any = source
        for table in tables._live.values():
            table._shard.connection.patience = type(table._shard.connection.patience)(0.3, 0.1)
        learn(model, [1, 2])
        started[0].kill()
        source.close()  # says nothing, and does not wait for long
        with pytest.raises(ConnectionError):
            source.take()
        with pytest.raises(ConnectionError):
            source.read("user", torch.tensor([1]))
        started[0].restart()
        learn(model, [3])
        for table in tables._live.values():
            table._shard.connection.patience = type(table._shard.connection.patience)(60.0, 1.0)
        assert all(one.whole_table for one in source.take().values())
        assert sorted(rows_of([source], "user")) == [1, 2, 3]
        source.close()


def test_a_model_here_is_one_source_and_one_without_rows_is_none() -> None:
    model = fresh()
    (source,) = row_sources(model)
    assert isinstance(source, HostSource)
    learn(model, [1])
    assert taken(source) == {"item": [1], "user": [1]}
    source.close()
    with pytest.raises(InputError, match="no rows"):
        row_sources(nn.Linear(1, 1))
