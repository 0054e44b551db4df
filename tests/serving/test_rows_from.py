"""An entry model finds its row servers by a file, an agent, or ZooKeeper in both generations."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hedgerow.discovery.paths import Container, ReplicaPaths, SavedModel
from hedgerow.discovery.payloads import AVAILABLE, ContainerServiceInfo, ReplicaMeta
from hedgerow.discovery.replicas import ReplicaRegistration, ZkBackend
from hedgerow.discovery.targets import FileAddressBook
from hedgerow.discovery.zookeeper import Session
from hedgerow.serving.agent import AgentServer
from hedgerow.serving.model import ServingError
from hedgerow.serving.remote_rows import Ask, rows_from
from hedgerow.serving.row_signatures import ps_model
from tests.zookeeper import ZooKeeperProcess, wait_for

from .serving import host_tables, serving

POD, PS_0 = Container("default", "pod"), SavedModel("m", "ps_0")


@contextmanager
def row_server(value: float, name: str = "ps_0") -> Iterator[str]:
    """A server whose row 7 is `value`."""
    tables = host_tables(user=2)
    tables.tables[0].assign(torch.tensor([7]), torch.full((1, 2), value))
    with serving(ps_model(name, tables)) as server:
        yield server.address


def row(ask: Ask) -> list[float]:
    inputs = {"id": torch.tensor([7]), "id_split": torch.tensor([0, 1])}
    return ask({"ps_0": inputs})["ps_0"]["flat_emb"].tolist()


def gives(ask: Ask, value: float) -> bool:
    try:
        return row(ask) == [value, value]
    except ServingError as error:
        if error.code != "UNAVAILABLE":
            raise
        return False


def put(path: Path, book: dict[str, list[str]]) -> None:
    path.with_suffix(".new").write_text(json.dumps(book))
    os.replace(path.with_suffix(".new"), path)


def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    with row_server(1.0) as one, row_server(2.0) as two:
        put(path, {"ps:0": [one]})
        with rows_from(f"file:{path}") as ask:
            assert gives(ask, 1.0)
            put(path, {"ps:0": [two]})
            assert wait_for(lambda: gives(ask, 2.0))


def test_an_agent(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    with row_server(1.0) as one:
        put(path, {"ps:0": [one]})
        with (
            AgentServer(FileAddressBook(path)) as agent,
            rows_from(f"agent:{agent.address}") as ask,
        ):
            assert gives(ask, 1.0)


@pytest.mark.xdist_group("zookeeper")
def test_zookeeper_first_generation(zookeeper: ZooKeeperProcess) -> None:
    meta = ReplicaMeta(None, None, AVAILABLE, server_type="ps", task=0, replica=0)
    with (
        row_server(1.0) as one,
        row_server(2.0) as two,
        Session.connect(zookeeper.hosts) as session,
        rows_from(f"zk:{zookeeper.hosts}/demo/m") as ask,
    ):
        assert not gives(ask, 1.0)  # nobody is there
        registration = ReplicaRegistration(session, ReplicaPaths("demo", "m"), meta)
        registration.register()
        registration.update(address=one)
        assert wait_for(lambda: gives(ask, 1.0))
        registration.update(address=two)
        assert wait_for(lambda: gives(ask, 2.0))


@pytest.mark.xdist_group("zookeeper")
def test_zookeeper_second_generation(zookeeper: ZooKeeperProcess) -> None:
    with (
        row_server(1.0, "m:ps_0") as one,
        row_server(2.0, "m:ps_0") as two,
        Session.connect(zookeeper.hosts) as session,
        rows_from(f"zk2:{zookeeper.hosts}/demo/m") as ask,
    ):
        backend = ZkBackend(session, "demo")
        backend.sync_available_saved_models(POD, [PS_0])
        for address, value in ((one, 1.0), (two, 2.0)):
            backend.report_service_info(POD, ContainerServiceInfo(grpc=address))
            assert wait_for(lambda v=value: gives(ask, v))
