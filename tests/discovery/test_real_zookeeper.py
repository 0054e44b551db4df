"""Both generations on a real ZooKeeper: lost sessions, new addresses, a server that restarts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import torch

from hedgerow.discovery.paths import Container, ReplicaPaths, SavedModel
from hedgerow.discovery.payloads import AVAILABLE, ContainerServiceInfo, ReplicaMeta
from hedgerow.discovery.replicas import ReplicaRegistration, ReplicaWatcher, ZkBackend
from hedgerow.discovery.zookeeper import Session
from hedgerow.monolith.distributed_serving_ops import refresh_sync_config, remote_predict
from hedgerow.serving.channels import Replicas
from hedgerow.serving.remote_rows import watched_replicas
from hedgerow.wire.push import read_config
from tests.serving.serving import adding, serving
from tests.zookeeper import ZooKeeperProcess, wait_for

pytestmark = pytest.mark.xdist_group("zookeeper")
SERVICE = ReplicaPaths("demo", "ffm")
ROUNDS = 3
POD, PS_1 = Container("default", "pod"), SavedModel("ffm", "ps_1")


def meta(address: str, replica: int = 0) -> ReplicaMeta:
    return ReplicaMeta(address, None, AVAILABLE, server_type="ps", task=1, replica=replica)


@dataclass
class Both:
    """A replica in both generations, and a trainer that watches both."""

    server: ZooKeeperProcess
    replica: Session
    trainer: Session
    registration: ReplicaRegistration
    container: ZkBackend
    watcher: ReplicaWatcher
    backend: ZkBackend

    def tell(self, address: str) -> None:
        self.registration.update(address=address)
        self.container.report_service_info(POD, ContainerServiceInfo(grpc=address))

    def targets(self) -> list[list[str]]:
        asked = (self.watcher, self.backend)
        return [list(read_config(refresh_sync_config(one, 1)).targets) for one in asked]

    def sees(self, address: str) -> bool:
        return wait_for(lambda: self.targets() == [[address]] * 2)


@pytest.fixture
def both(zookeeper: ZooKeeperProcess) -> Iterator[Both]:
    with ExitStack() as stack:
        replica, trainer = (
            stack.enter_context(Session.connect(zookeeper.hosts, 4.0)) for _ in range(2)
        )
        registration = ReplicaRegistration(replica, SERVICE, meta("h:1"))
        registration.register()
        container = ZkBackend(replica, "demo")
        container.report_service_info(POD, ContainerServiceInfo(grpc="h:1"))
        container.sync_available_saved_models(POD, [PS_1])
        watcher, backend = ReplicaWatcher(trainer, SERVICE), ZkBackend(trainer, "demo")
        watcher.start()
        backend.subscribe_model("ffm")
        yield Both(zookeeper, replica, trainer, registration, container, watcher, backend)


def test_a_replica_that_changes_its_address(both: Both) -> None:
    assert both.targets() == [["h:1"], ["h:1"]]
    both.tell("h:2")
    assert both.sees("h:2")


def test_a_replica_whose_session_expires_registers_again(both: Both) -> None:
    seen: list[list[list[str]]] = []
    both.trainer.follow(lambda: seen.append(both.targets()))
    both.server.expire(both.replica)
    assert wait_for(lambda: both.replica.counters.read("nodes_renewed") == 3)
    assert both.replica.counters.read("sessions_lost") == 1
    assert both.sees("h:1")
    assert wait_for(lambda: any(found != [["h:1"], ["h:1"]] for found in seen))  # it was away


def test_a_trainer_whose_session_expires_watches_again(both: Both) -> None:
    both.server.expire(both.trainer)
    assert wait_for(lambda: both.trainer.counters.read("sessions_lost") == 1)
    both.tell("h:3")
    assert both.sees("h:3")
    both.tell("h:4")  # by a watch of the new session
    assert both.sees("h:4")


def test_targets_stay_while_zookeeper_is_away(both: Both) -> None:
    both.server.kill()
    try:
        assert wait_for(lambda: both.trainer.client.state != "CONNECTED")
        assert both.targets() == [["h:1"], ["h:1"]]
    finally:
        both.server.start()
    assert wait_for(lambda: both.replica.client.state == "CONNECTED")
    both.tell("h:5")
    assert both.sees("h:5")


class FirstGeneration:
    """How a replica comes and goes, and what it is asked for."""

    key, model_name = "ps:1", "ps_1"

    def __init__(self, session: Session, number: int, address: str) -> None:
        self._registration = ReplicaRegistration(session, SERVICE, meta(address, number))

    def join(self) -> None:
        self._registration.register()

    def leave(self) -> None:
        self._registration.withdraw()

    @staticmethod
    def watching(session: Session) -> ReplicaWatcher:
        watcher = ReplicaWatcher(session, SERVICE)
        watcher.start()
        return watcher


class SecondGeneration:
    """The same for containers."""

    key = model_name = "ffm:ps_1"

    def __init__(self, session: Session, number: int, address: str) -> None:
        self._backend, self._pod = ZkBackend(session, "demo"), Container("default", f"p{number}")
        self._info = ContainerServiceInfo(grpc=address)

    def join(self) -> None:
        self._backend.sync_available_saved_models(self._pod, [PS_1])
        self._backend.report_service_info(self._pod, self._info)

    def leave(self) -> None:
        self._backend.sync_available_saved_models(self._pod, [])

    @staticmethod
    def watching(session: Session) -> ZkBackend:
        backend = ZkBackend(session, "demo")
        backend.subscribe_model("ffm")
        return backend


Generation = type[FirstGeneration] | type[SecondGeneration]


def _load(name: str, stop: threading.Event, answers: list[int], errors: list[Exception]) -> None:
    x = torch.zeros(1, 2)
    while not stop.is_set():
        try:
            (y,) = remote_predict(["x"], [x], ["y"], name, 1, None, max_rpc_deadline_millis=60_000)
            answers.append(int(y[0, 0]))
        except Exception as error:
            errors.append(error)
            return


def _join_and_leave(
    kind: Generation, hosts: str, number: int, replicas: Replicas, answers: list[int]
) -> None:
    """A replica that comes with a new address each round, answers, and goes."""
    for turn in range(ROUNDS):
        version = 100 * number + turn + 1
        model = adding(version, kind.model_name)
        with serving(model) as server, Session.connect(hosts) as session:
            replica = kind(session, number, server.address)
            replica.join()
            assert wait_for(lambda v=version: v in answers)
            replica.leave()
            # Who serves goes when nobody asks any more: as soon as the others know.
            assert wait_for(lambda a=server.address: a not in replicas.choose(kind.key, 9))


@pytest.mark.parametrize("kind", [FirstGeneration, SecondGeneration])
def test_three_replicas_join_and_leave_under_load(
    zookeeper: ZooKeeperProcess, kind: Generation
) -> None:
    answers: list[int] = []
    errors: list[Exception] = []
    stop = threading.Event()
    with ExitStack() as stack:
        stays = stack.enter_context(serving(adding(0, kind.model_name)))
        owner = stack.enter_context(Session.connect(zookeeper.hosts))
        kind(owner, 9, stays.address).join()
        session = stack.enter_context(Session.connect(zookeeper.hosts))
        replicas = stack.enter_context(watched_replicas(session, kind.watching(session)))
        asked = (kind.model_name, stop, answers, errors)
        load = [threading.Thread(target=_load, args=asked) for _ in range(2)]
        joining = [
            threading.Thread(
                target=_join_and_leave, args=(kind, zookeeper.hosts, n, replicas, answers)
            )
            for n in range(1, 4)
        ]
        for thread in (*load, *joining):
            thread.start()
        for thread in joining:
            thread.join()
        stop.set()
        for thread in load:
            thread.join()
        assert wait_for(lambda: replicas.choose(kind.key, 9) == [stays.address])
    assert errors == []
    joined = {100 * n + turn + 1 for n in range(1, 4) for turn in range(ROUNDS)}
    assert set(answers) == {0, *joined}
