"""The published tests of Monolith's discovery (A13), with their exact values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hedgerow.core.errors import FileDamagedError
from hedgerow.discovery.control import Control
from hedgerow.discovery.layouts import Deployment, LayoutWatcher
from hedgerow.discovery.paths import (
    Container,
    DeploymentPaths,
    ReplicaPaths,
    SavedModel,
    ServicePath,
    join_address,
)
from hedgerow.discovery.payloads import (
    AVAILABLE,
    UNLOAD,
    ContainerServiceInfo,
    PublishMeta,
    ReplicaMeta,
    ResourceSpec,
    SavedModelDeployConfig,
)
from hedgerow.discovery.replicas import ReplicaRegistration, ReplicaWatcher, ZkBackend
from hedgerow.discovery.zookeeper import Session
from hedgerow.monolith.distributed_serving_ops import refresh_sync_config
from hedgerow.serving.agent import AgentServer
from hedgerow.serving.remote_rows import Heartbeats, RefreshedReplicas
from hedgerow.wire.messages import agent_service as messages
from hedgerow.wire.push import read_config
from hedgerow.wire.rpc import AGENT_SERVICE
from tests.serving.serving import Caller

from .memory_zookeeper import MemoryZooKeeper

SERVICE = ReplicaPaths("demo", "test_ffm_model")
CONTAINER = Container("default", "asdf")
INFO = ContainerServiceInfo(
    "localhost:8888", "localhost:8889", "localhost:8890", "localhost:8891", "lf"
)
MODELS = [SavedModel("test_ffm_model", f"ps_{i}") for i in range(3)]


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(MemoryZooKeeper().client()).start() as session:
        yield session


def register(session: Session, task: int, replica: int, address: str) -> ReplicaRegistration:
    meta = ReplicaMeta(address, None, AVAILABLE, server_type="ps", task=task, replica=replica)
    registration = ReplicaRegistration(session, SERVICE, meta)
    registration.register()
    return registration


def test_a13_2_replica_watcher(session: Session) -> None:
    assert register(session, 1, -1, "localhost:8500").path == f"{SERVICE.root}/ps:1/-1"
    watcher = ReplicaWatcher(session, SERVICE)
    watcher.start()
    config = read_config(refresh_sync_config(watcher, 1))
    assert config.model_name == "ps_1"
    assert list(config.targets) == ["localhost:8500"]
    assert [one.replica_id for one in config.targets_extra_info] == [-1]


def test_a13_3_zk_backend(session: Session) -> None:
    backend = ZkBackend(session, "demo")
    backend.report_service_info(CONTAINER, INFO)
    assert backend.get_service_info(CONTAINER) == INFO
    backend.sync_available_saved_models(CONTAINER, MODELS)
    for model in MODELS:
        path = f"/demo/binding/test_ffm_model/{model.sub_graph}:default:asdf"
        assert session.client.exists(path) is not None
    backend.subscribe_model("test_ffm_model")
    config = read_config(refresh_sync_config(backend, 1))
    assert config.model_name == "test_ffm_model:ps_1"
    assert list(config.targets) == ["localhost:8888"]


def test_a13_3_layout_callback_is_called_in_order_and_again_after_removal(
    session: Session, tmp_path: Any
) -> None:
    for name in ("ps_1", "entry", "ps_0"):
        (tmp_path / name).mkdir()
    control = Control(session, "demo")
    control.declare("ffm", tmp_path)
    control.publish("mix", "ffm:*")
    calls: list[list[Deployment]] = []
    LayoutWatcher(session, "demo", "mix", lambda found: calls.append(list(found))).start()
    control.unpublish("mix", "ffm:entry")
    assert session.settle()
    ps = [
        (SavedModel("ffm", name), SavedModelDeployConfig(str(tmp_path / name), "latest_once"))
        for name in ("ps_0", "ps_1")
    ]
    entry = SavedModelDeployConfig(str(tmp_path / "entry"), "latest")
    assert calls == [[(SavedModel("ffm", "entry"), entry), *ps], ps]


def test_a13_7_agent_of_twenty_servers(session: Session) -> None:
    for task in range(20):
        for replica in range(2):
            register(session, task, replica, f"10.0.{task}.{replica}:8500")
    watcher = ReplicaWatcher(session, SERVICE)
    watcher.start()
    left = ResourceSpec("h:1", 1, 2, 12345, 3.5)
    asked = messages.GetReplicasRequest(server_type=0, task=1, model_name="test_ffm_model")
    with (
        AgentServer(watcher, resource=lambda: left) as agent,
        Caller(agent.address, AGENT_SERVICE) as caller,
    ):
        beat = caller.call("HeartBeat", messages.HeartBeatRequest(server_type=0))
        assert set(beat.addresses) == {f"ps:{task}" for task in range(20)}
        found = caller.call("GetReplicas", asked)
        assert list(found.address_list.address) == ["10.0.1.0:8500", "10.0.1.1:8500"]
        assert not caller.call("HeartBeat", messages.HeartBeatRequest(server_type=2)).addresses
        with pytest.raises(Exception, match="server_type is 7") as refused:
            caller.call("HeartBeat", messages.HeartBeatRequest(server_type=7))
        assert refused.value.code().name == "INVALID_ARGUMENT"  # type: ignore[attr-defined]
        resource = caller.call("GetResource", messages.GetResourceRequest())
        assert (resource.address, resource.shard_id, resource.replica_id) == ("h:1", 1, 2)
        assert (resource.memory, resource.cpu, resource.network) == (12345, 3.5, -1.0)


class Book:
    """What an agent tells: one key, whose address can change."""

    def __init__(self, key: str) -> None:
        self.key, self.address = key, "localhost:1"

    def addresses(self, server_type: str) -> dict[str, list[str]]:
        return {self.key: [self.address]} if server_type == "ps" else {}


@pytest.mark.parametrize(("key", "version"), [("ps:0", 0), ("model_name:ps_0", 1)])
def test_a13_7_heartbeat_cache(key: str, version: int) -> None:
    book = Book(key)
    with AgentServer(book) as agent, Heartbeats(agent.address) as beats:
        kept = RefreshedReplicas(beats.ask)
        with kept as replicas:
            assert replicas.choose(key) == ["localhost:1"]
            assert replicas.named is bool(version)
            assert not kept.refresh()  # nothing was rebuilt
            book.address = "localhost:2"
            assert kept.refresh()
            assert replicas.choose(key) == ["localhost:2"]


def test_a_lost_agent_leaves_the_replicas_that_it_told() -> None:
    with AgentServer(Book("ps:0")) as agent:
        beats = Heartbeats(agent.address, deadline_s=1.0)
        assert beats.ask() == {"ps:0": ["localhost:1"]}
    with beats:
        assert beats.ask() == {"ps:0": ["localhost:1"]}
        assert beats.counters.read("failed_heartbeats") == 2


def test_a13_8_address_join() -> None:
    assert join_address("localhost", 10) == "localhost:10"
    assert join_address("::1", 10) == "[::1]:10"


# ---- what Monolith's scheduler writes, and a node that is no service path


def test_publish_orders_are_written_as_monolith_writes_them() -> None:
    order = PublishMeta(1, 2, "ffm", 4, 3, {"ps_1": "/exported/ps_1/7"}, UNLOAD, True)
    text = (
        b'{"shard_id": 1, "replica_id": 2, "model_name": "ffm", "num_ps": 4, '
        b'"total_publish_num": 3, "sub_models": {"ps_1": "/exported/ps_1/7"}, "ptype": 2, '
        b'"is_spec": true}'
    )
    assert order.to_bytes() == text
    assert PublishMeta.from_bytes(text) == order
    least = (
        b'{"shard_id": null, "replica_id": -1, "model_name": null, "num_ps": null, '
        b'"total_publish_num": 1, "sub_models": null, "ptype": 1, "is_spec": false}'
    )
    assert PublishMeta.from_bytes(b"{}").to_bytes() == least
    for wrong in (b'{"ptype": true}', b'{"is_spec": 1}', b'{"sub_models": ["ps_1"]}'):
        with pytest.raises(FileDamagedError, match="PublishMeta"):
            PublishMeta.from_bytes(wrong)
    assert DeploymentPaths("demo").publish(1, 2, "ffm") == "/demo/publish/1:2:ffm"


def test_a_resource_that_tells_nothing_has_nulls() -> None:
    text = (
        b'{"address": null, "shard_id": null, "replica_id": null, "memory": null, '
        b'"cpu": -1.0, "network": -1.0, "work_load": -1.0}'
    )
    assert ResourceSpec.from_bytes(text).to_bytes() == text


def test_replica_minus_one_is_no_service_path() -> None:
    found = ServicePath.parse("/b/service/m/ps:1/-1")
    assert (found.bzid, found.server_type, found.replica_id, found.task) == (None,) * 4
    assert ServicePath.parse("/b/service/m/worker:1/3").task == "worker:1"
    assert ServicePath.parse("/b/service/m/a:b/ps:1/0").ship_in("a", None)
