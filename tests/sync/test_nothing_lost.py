"""Replicas and publishers that die, connections that break: at the end all rows are equal."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.nn.collection import servers_of
from hedgerow.serving.row_sources import row_sources
from hedgerow.tables.store import TableKeys

from ..ps.servers import ServerProcess
from .child import Child
from .processes import Rows, fresh_bags, publisher, replica, rows_in
from .proxy import TcpProxy
from .replicas import DIMS

IDS = 400


@dataclass
class Town:
    """A trainer on two servers, its publisher, and two replicas behind proxies."""

    model: nn.Module
    replicas: list[Child] = field(default_factory=list)
    proxies: list[TcpProxy] = field(default_factory=list)
    publisher: Child | None = None

    def train(self, draw: random.Random) -> None:
        """Some rows move, and some leave."""
        ids = [draw.randrange(-IDS, IDS) for _ in range(60)]
        batch = hr.IdBatch.from_lists({name: [ids] for name in DIMS})
        sum(out.sum() for out in self.model(batch).values()).backward()
        gone = torch.tensor(sorted({draw.randrange(-IDS, IDS) for _ in range(10)}))
        keys = TableKeys(torch.cat([gone] * len(DIMS)), (0, len(gone), 2 * len(gone)))
        self.model.store.erase(keys)  # type: ignore[union-attr]

    def disturb(self, draw: random.Random) -> str:
        """One accident."""
        place = draw.randrange(2)
        what = draw.choice(["replica", "replica", "publisher", "cut", "delay"])
        if what == "replica":
            child = self.replicas[place]
            child.kill()
            self.train(draw)
            child.restart(child.told)
        elif what == "publisher":
            assert self.publisher is not None
            self.publisher.kill()
            self.train(draw)
            self.publisher.restart()
        elif what == "cut":
            self.proxies[place].cut()
        else:
            self.proxies[place].delay_s = draw.choice([0.0, 0.01, 0.05])
        return what

    def rows(self) -> Rows:
        """All rows of the trainer, as the servers have them."""
        found: Rows = {name: {} for name in DIMS}
        for source in row_sources(self.model):
            for table in source.tables:
                for ids in source.all_ids(table.name):
                    read = source.read(table.name, ids)
                    assert bool(read.present.all())
                    pairs = zip(ids.tolist(), read.rows.tolist(), strict=True)
                    found[table.name] |= {key: tuple(row) for key, row in pairs}
            source.close()
        return found


@contextmanager
def town() -> Iterator[Town]:
    servers = [ServerProcess(i, 2) for i in range(2)]
    made: Town | None = None
    try:
        addresses = [one.address for one in servers]
        made = Town(hr.distribute(fresh_bags(), servers=addresses))
        for _ in range(2):
            made.replicas.append(Child(replica, "127.0.0.1:0"))
            made.proxies.append(TcpProxy(made.replicas[-1].told))
        made.publisher = Child(publisher, addresses, [one.address for one in made.proxies])
        yield made
        group = servers_of(made.model)
        assert group is not None
        group.close()
    finally:
        children = [] if made is None else [*made.replicas, made.publisher]
        for child in children:
            if child is not None:
                child.reap()
        for proxy in [] if made is None else made.proxies:
            proxy.close()
        for server in servers:
            server.reap()


@pytest.mark.parametrize(
    "accidents", [10, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_after_accidents_every_replica_equals_the_trainer(accidents: int) -> None:
    draw = random.Random(accidents)
    with town() as here:
        happened = []
        for _ in range(accidents):
            for _ in range(3):
                here.train(draw)
            happened.append(here.disturb(draw))
            time.sleep(draw.uniform(0.0, 0.05))
        for proxy in here.proxies:
            proxy.delay_s = 0.0
        here.train(draw)
        assert here.publisher is not None
        assert here.publisher.ask("flush", 50.0), here.publisher.ask("status")
        wanted = here.rows()
        assert {"replica", "publisher"} <= set(happened)
        assert all(len(rows) > IDS for rows in wanted.values())
        for child in here.replicas:
            assert rows_in(child.ask("rows")) == wanted
