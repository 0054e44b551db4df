"""Replicas and publishers in processes of their own, which can be killed and come back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

import hedgerow as hr
from hedgerow.discovery.paths import ReplicaPaths
from hedgerow.discovery.payloads import AVAILABLE, ReplicaMeta
from hedgerow.discovery.replicas import ReplicaRegistration, ReplicaWatcher
from hedgerow.discovery.targets import SubGraphTargets, Targets
from hedgerow.discovery.zookeeper import Session
from hedgerow.serving.client import PredictionClient
from hedgerow.serving.server import PredictionServer

from ..ps.servers import FORKS
from .replicas import DIMS, Served

FORKS.set_forkserver_preload(
    [
        "hedgerow.ps.server",
        "zmq",
        "pyarrow",
        "grpc",
        "grpc_health.v1.health",
        "grpc_reflection.v1alpha.reflection",
        "hedgerow.wire.pool",
        "torch._export.serde.serialize",
        "kazoo.client",
        "tests.ps.servers",
        __name__,
    ]
)
SERVICE, SESSION_S = ReplicaPaths("demo", "town"), 4.0
Rows = dict[str, dict[int, tuple[float, ...]]]


def replica(pipe: Connection, address: str) -> None:
    """A server over empty tables; it tells its address, and on demand its rows.

    Told to "register", it does so in ZooKeeper, under the address where others reach it.
    """
    torch.set_num_threads(1)
    served = Served()
    with ExitStack() as stack:
        server = stack.enter_context(PredictionServer(served.registry, address))
        pipe.send(server.address)
        while True:
            what, *arguments = pipe.recv()
            if what == "register":
                hosts, number, reached = arguments
                session = stack.enter_context(Session.connect(hosts, SESSION_S))
                kind = {"server_type": "ps", "task": 0, "replica": number}
                meta = ReplicaMeta(reached, None, AVAILABLE, **kind)
                pipe.send(ReplicaRegistration(session, SERVICE, meta).register())
                continue
            told = {}
            for table in served.store.tables:
                parts = [(one.ids.numpy(), one.rows.numpy()) for one in table.scan()]
                told[table.config.name] = parts
            pipe.send(told)


def bundle_replica(pipe: Connection, folder: str) -> None:
    """Serves a bundle; it tells its address, and on demand how fresh it is."""
    torch.set_num_threads(1)
    with hr.serving.Replica(folder) as made:
        pipe.send(made.address)
        while True:
            pipe.recv()
            pipe.send(made.status())


def asker(pipe: Connection, address: str, probe: int, rate: float) -> None:
    """Asks a replica of a bundle for predictions, and for the row of an id that holds a time."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(7)
    with PredictionClient(address) as client:
        pipe.send("started")
        while True:
            _, seconds = pipe.recv()
            try:
                pipe.send(_ask(client, probe, rate, seconds, draw))
            except Exception as error:
                pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
                raise


def _ask(
    client: PredictionClient, probe: int, rate: float, seconds: float, draw: torch.Generator
) -> tuple[list[float], list[float]]:
    """Seconds of each prediction, and the ages of the row; asked at a rate, answered or not.

    Without deadlines: where all processes are stopped for a while, that is one late answer.
    """
    latencies, ages = [], []
    start_s = time.monotonic()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, start_s + number / rate - time.monotonic()))
        ids = {name: torch.randint(0, 200_000, (64,), generator=draw) for name in DIMS}
        lengths = {f"{name}_lengths": torch.ones(64, dtype=torch.int64) for name in DIMS}
        began_s = time.monotonic()
        client.predict("entry", "serving_default", {**ids, **lengths}, timeout=None)
        latencies.append(time.monotonic() - began_s)
        if number % 4 == 0:
            one = {name: torch.tensor([probe]) for name in DIMS}
            row = client.predict("entry", "lookup", one, timeout=None)["user"]
            ages.append(time.monotonic() - float(row[0, 0]) - 100.0 * float(row[0, 1]))
    return latencies, ages


def publisher(pipe: Connection, servers: Sequence[str], to: Sequence[str] | str) -> None:
    """Publishes the rows on servers; it flushes, or tells how it stands, on demand.

    `to` are addresses, or ZooKeeper's, where replicas registered.
    """
    torch.set_num_threads(1)
    with ExitStack() as stack:
        targets: Targets | list[str] = list(to)
        if isinstance(to, str):
            watcher = ReplicaWatcher(stack.enter_context(Session.connect(to, SESSION_S)), SERVICE)
            watcher.start()
            targets = SubGraphTargets(watcher, "ps_0")
        model = hr.distribute(fresh_bags(), servers=list(servers))
        made = stack.enter_context(hr.publish(model, targets, every="20ms"))
        pipe.send("started")
        while True:
            what, *arguments = pipe.recv()
            pipe.send(made.flush(*arguments) if what == "flush" else made.status())


def fresh_bags() -> hr.EmbeddingBags:
    """The model that all of these processes know."""
    tables = [hr.Table(name, dim) for name, dim in DIMS.items()]
    return hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=0.5), init=hr.Zeros())


def rows_in(told: dict[str, list[tuple[Any, Any]]]) -> Rows:
    """What a replica told, by table and id."""
    return {
        table: {
            int(key): tuple(np.asarray(row).tolist())
            for ids, rows in parts
            for key, row in zip(ids, rows, strict=True)
        }
        for table, parts in told.items()
    }
