"""The second generation: what ours does where Monolith fails, and parity beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hedgerow.discovery.paths import Container, SavedModel
from hedgerow.discovery.payloads import ContainerServiceInfo
from hedgerow.discovery.replicas import ZkBackend
from hedgerow.discovery.zookeeper import Session
from hedgerow.monolith.sync.config import refresh_sync_config

from .memory_zookeeper import MemoryZooKeeper

POD = Container("default", "pod")
PS_1 = SavedModel("ffm", "ps_1")


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(MemoryZooKeeper().client()).start() as session:
        yield session


def test_a_second_model_is_an_error_that_leaves_the_first(session: Session) -> None:
    backend = ZkBackend(session, "demo")
    backend.subscribe_model("ffm")
    with pytest.raises(ValueError, match="follows model 'ffm'"):
        backend.subscribe_model("other")
    assert backend.get_sync_targets("ps_1") == ("ffm:ps_1", [])


def test_nothing_is_known_without_a_subscription(session: Session) -> None:
    with pytest.raises(ValueError, match="subscribe_model"):
        refresh_sync_config(ZkBackend(session, "demo"), 1)
    parity = ZkBackend(session, "demo", parity=True)
    assert parity.get_sync_targets("ps_1") == ("None:ps_1", [])


@pytest.mark.parametrize("parity", [False, True])
def test_an_address_that_comes_or_changes_after_its_binding(session: Session, parity: bool) -> None:
    backend = ZkBackend(session, "demo", parity=parity)
    backend.subscribe_model("ffm")
    backend.sync_available_saved_models(POD, [PS_1])
    assert session.settle()
    for address in ("h:1", "h:2"):
        backend.report_service_info(POD, ContainerServiceInfo(grpc=address))
        assert session.settle()
        known = [] if parity else [address]  # Monolith's defect
        assert backend.get_sync_targets("ps_1") == ("ffm:ps_1", known)


def test_a_container_without_a_grpc_address_is_skipped_and_counted(session: Session) -> None:
    backend = ZkBackend(session, "demo")
    backend.report_service_info(POD, ContainerServiceInfo(http="h:1"))
    backend.report_service_info(Container("default", "good"), ContainerServiceInfo(grpc="h:2"))
    for container in (POD, Container("default", "good")):
        backend.sync_available_saved_models(container, [PS_1])
    backend.subscribe_model("ffm")
    assert backend.get_sync_targets("ps_1") == ("ffm:ps_1", ["h:2"])
    assert session.counters.read("containers_without_grpc") == 1


def test_a_damaged_container_is_skipped_and_counted(session: Session) -> None:
    backend = ZkBackend(session, "demo")
    backend.sync_available_saved_models(POD, [PS_1])
    for damaged in (b"{", b"[]", b'{"grpc": 5}', b"\xff"):
        session.client.create(f"/demo/container_service/{POD}", damaged, makepath=True)
        before = session.counters.read("damaged_nodes")
        backend.subscribe_model("ffm")
        assert session.settle()
        assert backend.get_sync_targets("ps_1")[1] == []
        assert session.counters.read("damaged_nodes") > before
        session.client.delete(f"/demo/container_service/{POD}")


def test_containers_of_one_process_have_their_own_bindings(session: Session) -> None:
    backend, other = ZkBackend(session, "demo"), Container("default", "pod2")
    for container in (POD, other):
        backend.sync_available_saved_models(container, [PS_1])
    backend.sync_available_saved_models(POD, [])
    assert session.client.get_children("/demo/binding/ffm") == ["ps_1:default:pod2"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ä", "a:b", None])
def test_names_are_checked(session: Session, name: str) -> None:
    with pytest.raises(ValueError, match=r"\[-_0-9A-Za-z\]\+"):
        ZkBackend(session, name)
    with pytest.raises(ValueError, match=r"\[-_0-9A-Za-z\]\+"):
        ZkBackend(session, "demo").subscribe_model(name)


def test_addresses_by_kind(session: Session) -> None:
    backend = ZkBackend(session, "demo")
    backend.report_service_info(POD, ContainerServiceInfo(grpc="h:1"))
    backend.sync_available_saved_models(POD, [PS_1, SavedModel("ffm", "entry")])
    backend.subscribe_model("ffm")
    assert backend.addresses("ps") == {"ffm:ps_1": ["h:1"]}
    assert backend.addresses("entry") == {"ffm:entry": ["h:1"]}
    assert backend.addresses("dense") == {}
