"""Vectors of discovery: paths and contents of nodes, and what a trainer pushes to whom."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest

from hedgerow.discovery.paths import Container, ReplicaPaths, SavedModel, ServicePath
from hedgerow.discovery.payloads import (
    ContainerServiceInfo,
    ModelMeta,
    PublishMeta,
    ReplicaMeta,
    ResourceSpec,
    SavedModelDeployConfig,
)
from hedgerow.discovery.replicas import ReplicaWatcher, ZkBackend
from hedgerow.discovery.zookeeper import Session
from hedgerow.monolith.sync.config import refresh_sync_config
from hedgerow.wire.messages import parameter_sync
from hedgerow.wire.push import read_config
from tests.discovery.memory_zookeeper import MemoryZooKeeper
from tests.zookeeper import wait_for

from .runner import Case, take
from .serving_area import AREA

PAYLOADS = {
    "service": ReplicaMeta,
    "container_service": ContainerServiceInfo,
    "saved_models": SavedModelDeployConfig,
    "resource": ResourceSpec,
    "portal": ModelMeta,
    "publish": PublishMeta,
}


@AREA.handles("zk_path", "cases")
def _path(case: Case) -> None:
    parts = ("bzid", "base_name", "idc", "cluster", "server_type", "index", "replica_id")
    value = case.take({"path", *parts, "task", "location", "ship_in_none", "ship_in_lf_default"})
    found = ServicePath.parse(value["path"])
    for name in (*parts, "task", "location"):
        assert getattr(found, name) == value[name]
    assert found.ship_in(None, None) is value["ship_in_none"]
    assert found.ship_in("lf", "default") is value["ship_in_lf_default"]


@AREA.handles("znode_payloads", "cases")
def _payload(case: Case) -> None:
    value = case.take({"name", "path", "payload"})
    kind = PAYLOADS[value["path"].split("/")[2]]
    data = value["payload"].encode()
    assert kind.from_bytes(data).to_bytes() == data


@AREA.handles("refresh_sync_config", "cases")
def _refresh(case: Case) -> None:
    server = MemoryZooKeeper()
    play(case.value, server.client, ordered=True)


def play(value: dict[str, Any], client: Callable[[], Any], *, ordered: bool) -> None:
    """One case; `client` makes clients of a ZooKeeper that is empty."""
    writer = client()
    writer.start()
    session = Session(client()).start()
    try:
        {"replica_watcher": _play_watcher, "zk_backend": _play_backend}[value["backend"]](
            value, session, writer, ordered
        )
        assert session.counters.read("failed_refreshes") == 0
    finally:
        session.stop()
        writer.stop()
        writer.close()


def _play_watcher(value: dict[str, Any], session: Session, writer: Any, _: bool) -> None:
    value = take(
        value,
        {
            *("name", "backend", "bzid", "base_name", "dc_aware", "address_family"),
            *("use_archon", "zookeeper", "then", "ps_index", "expect"),
        },
        {"order", "quirk", "live_zookeeper_agrees"},
    )
    for node in value["zookeeper"]:
        node = take(node, {"path", "data"})
        writer.create(node["path"], node["data"].encode(), makepath=True)
    watcher = ReplicaWatcher(
        session,
        ReplicaPaths(value["bzid"], value["base_name"], value["dc_aware"]),
        address_family=value["address_family"],
        use_archon=value["use_archon"],
    )
    watcher.start()
    for change in value["then"]:
        _change(writer, change)
        session.settle()
    _check(value["expect"], lambda: refresh_sync_config(watcher, value["ps_index"]), True)


def _change(writer: Any, change: list[Any]) -> None:
    kind, path, *data = change
    if kind == "create":
        writer.create(path, data[0].encode(), makepath=True)
    elif kind == "set":
        writer.set(path, data[0].encode())
    else:
        assert kind == "delete", f"unknown change {kind}"
        writer.delete(path)


def _play_backend(value: dict[str, Any], session: Session, writer: Any, ordered: bool) -> None:
    value = take(
        value,
        {"name", "backend", "bzid", "steps", "leaf_nodes_after", "ps_index", "expect"},
        {"order", "quirk", "live_zookeeper_agrees"},
    )
    backend = ZkBackend(session, value["bzid"], parity="quirk" in value)

    def steps() -> None:
        for step in value["steps"]:
            _step(backend, writer, step)
            session.settle()

    raises = value["expect"].get("raises")
    if raises is not None:
        kind = getattr(builtins, raises)
        with pytest.raises(kind) as caught:  # noqa: PT012  (either may raise)
            steps()
            refresh_sync_config(backend, value["ps_index"])
        assert caught.type is kind
        take(value["expect"], {"raises"})
    else:
        steps()
        _check(value["expect"], lambda: refresh_sync_config(backend, value["ps_index"]), ordered)
    leaves = [take(node, {"path", "data"}) for node in value["leaf_nodes_after"]]
    assert _leaves(writer, f"/{value['bzid']}") == {one["path"]: one["data"] for one in leaves}


def _step(backend: ZkBackend, writer: Any, step: list[Any]) -> None:
    kind, *given = step
    if kind == "report":
        backend.report_service_info(Container(*given[0]), ContainerServiceInfo(**given[1]))
    elif kind == "available":
        models = [SavedModel(*one) for one in given[1]]
        backend.sync_available_saved_models(Container(*given[0]), models)
    elif kind == "subscribe":
        backend.subscribe_model(given[0])
    else:
        _change(writer, step)


def _leaves(client: Any, path: str) -> dict[str, str]:
    children = client.get_children(path)
    if not children:
        return {path: client.get(path)[0].decode()}
    return {
        leaf: data for one in children for leaf, data in _leaves(client, f"{path}/{one}").items()
    }


def _check(expect: dict[str, Any], refresh: Callable[[], bytes], ordered: bool) -> None:
    """Watches of a real ZooKeeper come when they come, and its children in any order."""
    expect = take(expect, {"config", "hex"})
    wanted = bytes.fromhex(expect["hex"])
    assert parameter_sync.ClientConfig(**expect["config"]) == read_config(wanted)
    form = bytes.hex if ordered else _sorted
    wait_for(lambda: form(refresh()) == form(wanted))
    assert form(refresh()) == form(wanted)


def _sorted(data: bytes) -> tuple[Any, ...]:
    config = read_config(data)
    extra = [one.SerializeToString() for one in config.targets_extra_info]
    pairs = list(zip(config.targets, extra, strict=True)) if extra else list(config.targets)
    return config.model_name, config.signature_name, config.timeout_in_ms, sorted(pairs)
