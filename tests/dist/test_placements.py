"""One model wherever its rows are: in this process, on servers, over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import ConfigError, NotSupportedError, StateError
from hedgerow.nn.embedding_modules import collections_of, servers_of
from hedgerow.ps.server_tables import ServerTables
from tests.ps.servers import servers
from tests.support import bits

from . import distribute_work as work
from .distribute_models import batch_of, lists_of, rows_of, train
from .pool import Pool

pytestmark = pytest.mark.xdist_group("placements")
SERVERS = (2, 5)
Rows = dict[str, dict[int, Any]]


@contextmanager
def on_servers(model: nn.Module, count: int, **settings: Any) -> Iterator[nn.Module]:
    with servers(count) as addresses:
        spread = hr.distribute(model, servers=addresses["ps"], **settings)
        group = servers_of(spread)
        assert group is not None
        assert group.count == count
        try:
            yield spread
        finally:
            group.close()


def rows_on_servers(model: nn.Module) -> Rows:
    """All rows by table and id, as `rows_of` gives those of this process."""
    found: Rows = {}
    for one in collections_of(model):
        assert isinstance(one.store, ServerTables)
        for k, name in enumerate(one.store.names):
            rows: dict[int, Any] = {}
            for part in one.store.table(k).scan(50):
                states = [(n, v) for segment in part.states for n, v in sorted(segment.items())]
                for i, key in enumerate(part.ids.tolist()):
                    assert key not in rows
                    of_states = [(n, v[i].tolist()) for n, v in states]
                    rows[key] = (bits(part.rows[i]), of_states, int(part.ts[i]))
            found[name] = rows
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[float], Rows]]:
    """Of one process: losses and rows by optimizer."""
    found = {}
    for name, rule in work.OPTIMIZERS.items():
        model = work.made(optimizer=rule)
        found[name] = work.losses(model), rows_of(model)
    return found


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(3, tmp_path_factory.mktemp("placements"))
    yield made
    made.close()


@pytest.mark.parametrize("optimizer", work.OPTIMIZERS)
@pytest.mark.parametrize("placement", ["here", *(f"{n} servers" for n in SERVERS), "3 ranks"])
def test_the_same_model_over_100_steps(
    pool: Pool, alone: dict[str, tuple[list[float], Rows]], placement: str, optimizer: str
) -> None:
    losses, rows = alone[optimizer]
    assert len(losses) == 100
    if placement == "3 ranks":
        owners = {name: set(own) for name, own in rows.items()}
        pool.run(3, work.losses_as_on_one_process, {optimizer: losses}, owners)
        return
    model = work.made(optimizer=work.OPTIMIZERS[optimizer])
    if placement == "here":
        assert work.losses(hr.distribute(model)) == losses
        assert rows_of(model) == rows
        return
    with on_servers(model, int(placement[0])) as spread:
        assert work.losses(spread) == losses
        assert rows_on_servers(spread) == rows  # bit for bit


def test_save_and_restore_at_another_number_of_servers(tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = work.made(optimizer=hr.Adam(lr=0.02))
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    whole, adam = made()
    train(whole, adam, range(5))
    wanted = train(whole, adam, range(5, 10))
    model, adam = made()
    with on_servers(model, 2) as spread:
        train(spread, adam, range(5))
        manifest = hr.save(spread, tmp_path / "two", optimizer=adam, step=5)
        assert (manifest.step, manifest.routing.shards) == (5, 2)
        with pytest.raises(FileExistsError):
            hr.save(spread, tmp_path / "two", optimizer=adam)
        assert train(spread, adam, range(5, 10)) == wanted
    model, adam = made()
    with on_servers(model, 3) as spread:
        loaded = hr.load(spread, tmp_path / "two", optimizer=adam)
        assert (loaded.step, loaded.added, loaded.removed) == (5, (), ())
        assert sum(loaded.rows.values()) == manifest.rows
        assert train(spread, adam, range(5, 10)) == wanted
        assert rows_on_servers(spread) == rows_of(whole)
        hr.save(spread, tmp_path / "three", optimizer=adam, step=10)
    model, adam = made()
    assert hr.load(model, tmp_path / "three", optimizer=adam).step == 10
    assert rows_of(model) == rows_of(whole)  # and back into one process


def test_a_model_on_servers_is_used_as_a_plain_one(tmp_path: Path) -> None:
    model = work.made()
    with on_servers(model, 2, wire="bf16", dedup=False) as spread:
        train(spread, torch.optim.SGD(model.parameters(), lr=0.1), range(2))
        bags = collections_of(spread)[0]
        shown = hr.summary(spread)
        assert "rows on 2 servers" in shown
        assert f"{sum(sum(c.row_counts().values()) for c in collections_of(spread))} rows" in shown
        assert "rows" in repr(spread)
        with pytest.raises(NotSupportedError, match="on servers"):
            bags.table("user")
        batch = batch_of(lists_of(0))
        assert torch.equal(hr.freeze(spread)(batch), spread.eval()(batch))
        with pytest.raises(StateError, match="already"):
            hr.distribute(spread, servers=["127.0.0.1:1"])


def test_what_cannot_go_to_servers() -> None:
    with pytest.raises(ConfigError, match="at least one address"):
        hr.distribute(work.made(), servers=[])
    with pytest.raises(ConfigError, match="evict"):
        hr.distribute(work.made(evict=hr.Lru(rows=5)), servers=["127.0.0.1:1"])
    model = work.made()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(1))
    with pytest.raises(StateError, match="Distribute it first"):
        hr.distribute(model, servers=["127.0.0.1:1"])
