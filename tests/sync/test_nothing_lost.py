"""Whoever dies, and whatever breaks: at the end every replica has all rows of the trainer."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.nn.embedding_modules import servers_of
from hedgerow.serving.publish import row_sources
from hedgerow.tables.store import TableKeys

from ..ps.servers import ServerProcess
from ..zookeeper import ZooKeeperProcess, why_absent
from .child import Child
from .processes import Rows, fresh_bags, publisher, replica, rows_in
from .proxy import TcpProxy
from .replicas import DIMS, wait_for

IDS = 400
KINDS = ["replica", "publisher", "server", "zookeeper", "cut", "delay"]


@dataclass
class Town:
    """A trainer on two servers, its publisher, two replicas behind proxies, and who knows them."""

    model: nn.Module
    servers: list[ServerProcess]
    zookeeper: ZooKeeperProcess | None
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

    def disturb(self, what: str, draw: random.Random) -> None:
        """One accident."""
        place = draw.randrange(2)
        if what == "replica":
            child = self.replicas[place]
            child.kill()
            self.train(draw)
            child.restart(child.told)
            self.register(place)
        elif what == "publisher":
            assert self.publisher is not None
            self.publisher.kill()
            self.train(draw)
            self.publisher.restart()
        elif what == "server":
            self.servers[place].crash()
        elif what == "zookeeper":
            if self.zookeeper is not None:
                self.zookeeper.kill()
                self.train(draw)
                self.proxies[place].cut()
                self.zookeeper.start()
        elif what == "cut":
            self.proxies[place].cut()
        else:
            self.proxies[place].delay_s = draw.choice([0.0, 0.01, 0.05])

    def register(self, place: int) -> None:
        """A replica's word where it is reached."""
        if self.zookeeper is not None:
            address = self.proxies[place].address
            self.replicas[place].ask("register", self.zookeeper.hosts, place, address)

    def all_are_listed(self) -> bool:
        """Whether the publisher knows both replicas: one that it does not know gets nothing."""
        assert self.publisher is not None
        listed = {one.address for one in self.publisher.ask("status").targets if one.listed}
        return listed == {one.address for one in self.proxies}

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
def town(folder: Path, zookeeper: ZooKeeperProcess | None) -> Iterator[Town]:
    servers = [ServerProcess(i, 2, checkpoint=folder, durability="log") for i in range(2)]
    made: Town | None = None
    try:
        addresses = [one.address for one in servers]
        made = Town(hr.distribute(fresh_bags(), servers=addresses), servers, zookeeper)
        for place in range(2):
            made.replicas.append(Child(replica, "127.0.0.1:0"))
            made.proxies.append(TcpProxy(made.replicas[-1].told))
            made.register(place)
        to = [one.address for one in made.proxies] if zookeeper is None else zookeeper.hosts
        made.publisher = Child(publisher, addresses, to)
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


@pytest.fixture(params=["zookeeper", *(["list"] if why_absent() else [])])
def known_by(request: pytest.FixtureRequest) -> ZooKeeperProcess | None:
    """Where replicas are found: in ZooKeeper, and where there is none, aloud, in a list."""
    return request.getfixturevalue("zookeeper") if request.param == "zookeeper" else None


@pytest.mark.xdist_group("zookeeper")
@pytest.mark.parametrize(
    "accidents", [10, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_after_accidents_every_replica_equals_the_trainer(
    accidents: int, known_by: ZooKeeperProcess | None, tmp_path: Path
) -> None:
    draw = random.Random(accidents)
    kinds = [*KINDS, *draw.choices(KINDS, k=accidents - len(KINDS))]
    draw.shuffle(kinds)
    with town(tmp_path, known_by) as here:
        for kind in kinds:
            for _ in range(3):
                here.train(draw)
            here.disturb(kind, draw)
            time.sleep(draw.uniform(0.0, 0.05))
        for proxy in here.proxies:
            proxy.delay_s = 0.0
        here.train(draw)
        assert here.publisher is not None
        wait_for(here.all_are_listed)
        assert here.publisher.ask("flush", 50.0), here.publisher.ask("status")
        assert here.all_are_listed()
        wanted = here.rows()
        assert all(len(rows) > IDS for rows in wanted.values())
        for child in here.replicas:
            assert rows_in(child.ask("rows")) == wanted
