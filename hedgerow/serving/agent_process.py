"""An agent: tells ZooKeeper how the server beside it is, and that server's friends who is there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from ..core.errors import InputError
from ..discovery.layouts import Deployment, LayoutFilter, LayoutWatcher
from ..discovery.paths import Container, Service
from ..discovery.payloads import AVAILABLE, UNKNOWN, ContainerServiceInfo, ReplicaMeta
from ..discovery.registration import ReplicaRegistration
from ..discovery.replica_watcher import ReplicaWatcher
from ..discovery.session import Session
from ..discovery.zk_backend import ZkBackend
from ..discovery.zookeeper import kazoo_failures
from .agent import AddressBook, AgentServer, machine_resource
from .client import PredictionClient
from .model import ServingError

_LOOK_S = 1.0
_LOG = logging.getLogger("hedgerow")
_STATES = {"UNKNOWN": 0, "START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """Where ZooKeeper is, where the agent listens, and the server that it speaks for."""

    hosts: str
    bzid: str
    server: str
    listen: str = "127.0.0.1:0"
    session_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """A replica of the first generation; a place makes the tree aware of data centres."""

    base_name: str
    server_type: str
    task: int
    replica: int = -1
    idc: str | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """A container of the second generation: what it serves of a model, by layout."""

    container: Container
    model_name: str
    layout: str
    only: tuple[LayoutFilter, ...] = ()
    idc: str | None = None


def state_of(client: PredictionClient, model_name: str, timeout_s: float = 1.0) -> int:
    """The state of a model at a server: available if a version is, else that of the newest.

    >>> with PredictionClient("127.0.0.1:1") as client:
    ...     state_of(client, "ps_0")
    0
    """
    try:
        found = client.model_status(model_name, timeout=timeout_s)
    except ServingError:
        return UNKNOWN
    states = {one.version: _STATES.get(one.state, UNKNOWN) for one in found}
    if AVAILABLE in states.values():
        return AVAILABLE
    return states[max(states)] if states else UNKNOWN


def run_agent(
    plan: AgentPlan,
    serves: ReplicaPlan | ContainerPlan,
    tell: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Speaks for the server until `stop`; `tell` gets the agent's address."""
    with ExitStack() as stack:
        session = stack.enter_context(Session.connect(plan.hosts, plan.session_s))
        client = stack.enter_context(PredictionClient(plan.server))
        if isinstance(serves, ReplicaPlan):
            book, look = _first_generation(plan, serves, session, client)
            numbers = (serves.task, serves.replica)
        else:
            book, look = _second_generation(plan, serves, session, client)
            numbers = (-1, -1)
        resource = partial(machine_resource, plan.server, *numbers)
        look()
        agent = stack.enter_context(AgentServer(book, plan.listen, resource=resource))
        tell(f"agent {agent.address}")
        while not stop.wait(_LOOK_S):
            try:
                look()
            except kazoo_failures() as error:  # it comes back, and with it what was told
                _LOG.warning("ZooKeeper: %r; trying again", error)


def _first_generation(
    plan: AgentPlan, serves: ReplicaPlan, session: Session, client: PredictionClient
) -> tuple[AddressBook, Callable[[], None]]:
    if (serves.idc is None) != (serves.cluster is None):
        raise InputError("an idc and a cluster are one place; give both or none.")
    service = Service(plan.bzid, serves.base_name, serves.idc is not None)
    meta = ReplicaMeta(
        plan.server, server_type=serves.server_type, task=serves.task, replica=serves.replica
    )
    registration = ReplicaRegistration(session, service, meta, serves.idc, serves.cluster)
    registration.register()
    watcher = ReplicaWatcher(session, service)
    watcher.start()
    entry = serves.server_type == "entry"
    model_name = "entry" if entry else f"{serves.server_type}_{serves.task}"
    return watcher, lambda: registration.update(stat=state_of(client, model_name))


def _second_generation(
    plan: AgentPlan, serves: ContainerPlan, session: Session, client: PredictionClient
) -> tuple[AddressBook, Callable[[], None]]:
    backend = ZkBackend(session, plan.bzid)
    info = ContainerServiceInfo(grpc=plan.server, idc=serves.idc)
    wanted: list[Deployment] = []

    def take(deployments: Sequence[Deployment]) -> None:
        wanted[:] = deployments

    def look() -> None:
        models = [model for model, _ in list(wanted) if model.model_name == serves.model_name]
        ready = [one for one in models if state_of(client, str(one)) == AVAILABLE]
        backend.sync_available_saved_models(serves.container, ready)

    backend.report_service_info(serves.container, info)
    backend.subscribe_model(serves.model_name)
    LayoutWatcher(session, plan.bzid, serves.layout, take, serves.only).start()
    return backend, look
