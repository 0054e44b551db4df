"""The agent of a server: registers the server in ZooKeeper and answers queries for addresses."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ..core.errors import InputError
from ..discovery.layouts import Deployment, LayoutFilter, LayoutWatcher
from ..discovery.paths import Container, ReplicaPaths
from ..discovery.payloads import AVAILABLE, UNKNOWN, ContainerServiceInfo, ReplicaMeta, ResourceSpec
from ..discovery.replicas import ReplicaRegistration, ReplicaWatcher, ZkBackend
from ..discovery.zookeeper import Session, kazoo_failures
from ..wire.codec import from_bytes, to_bytes
from ..wire.messages import agent_service as messages
from ..wire.rpc import AGENT_SERVICE, Behaviour, listen, methods, new_server, service_handler
from .client import PredictionClient
from .endpoints import coded
from .model import ServingError

if TYPE_CHECKING:
    from ..wire.messages.agent_service import (
        GetReplicasRequest,
        GetReplicasResponse,
        GetResourceRequest,
        GetResourceResponse,
        HeartBeatRequest,
        HeartBeatResponse,
    )


_THREADS, _MOST_REQUESTS, _MESSAGE_BYTES = 4, 64, 4 << 20
_LOG = logging.getLogger("hedgerow")


class AddressBook(Protocol):
    """Looks up the addresses of replicas: a ReplicaWatcher, a ZkBackend or a FileAddressBook."""

    def addresses(self, server_type: str) -> Mapping[str, Sequence[str]]:
        """Returns the replica addresses of each server of a type, by key ("ps:1", "model:ps_1")."""
        ...


class AgentServer:
    """A gRPC server of GetReplicas, GetResource and HeartBeat; `start()` it, or use `with`.

    `resource` returns the free resources of the machine; the default is machine_resource().

    >>> class Nobody:
    ...     def addresses(self, server_type):
    ...         return {}
    >>> with AgentServer(Nobody()) as agent:
    ...     agent.address.startswith("127.0.0.1:")
    True
    """

    def __init__(
        self,
        book: AddressBook,
        address: str = "127.0.0.1:0",
        *,
        resource: Callable[[], ResourceSpec] | None = None,
    ) -> None:
        self._book, self._resource = book, resource or machine_resource
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="agent")
        self._server = new_server(self._pool, _MESSAGE_BYTES, requests=_MOST_REQUESTS)
        functions = {
            "GetReplicas": self._replicas,
            "GetResource": self._left,
            "HeartBeat": self._heart_beat,
        }
        behaviours = {
            name: _behaviour(method.request, functions[name])
            for name, method in methods(AGENT_SERVICE).items()
        }
        handler = service_handler(AGENT_SERVICE, behaviours, _coded)
        self._server.add_generic_rpc_handlers([handler])
        try:
            self.address = listen(self._server, address)
        except Exception:
            self._pool.shutdown()
            raise

    def start(self) -> Self:
        """Starts to answer requests."""
        self._server.start()
        return self

    def stop(self, grace_s: float = 1.0) -> None:
        """Stops the server; requests in flight have `grace_s` seconds to end."""
        self._server.stop(grace_s).wait()
        self._pool.shutdown()

    def _replicas(self, request: GetReplicasRequest) -> GetReplicasResponse:
        kind = _kind(request.server_type)
        known = self._book.addresses(kind)
        model, task = request.model_name, request.task
        names = (f"{kind}:{task}", f"{model}:{kind}_{task}", f"{model}:{kind}")
        found = next((known[name] for name in names if name in known), ())
        return messages.GetReplicasResponse(address_list=messages.AddressList(address=found))

    def _left(self, _: GetResourceRequest) -> GetResourceResponse:
        left = self._resource()
        return messages.GetResourceResponse(
            address=left.address or "",
            shard_id=left.shard_id,
            replica_id=left.replica_id,
            memory=left.memory,
            cpu=left.cpu,
            network=left.network,
            work_load=left.work_load,
        )

    def _heart_beat(self, request: HeartBeatRequest) -> HeartBeatResponse:
        kind = _kind(request.server_type)
        known = self._book.addresses(kind)
        lists = {key: messages.AddressList(address=found) for key, found in known.items()}
        return messages.HeartBeatResponse(addresses=lists)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _kind(number: int) -> str:
    """Returns the server type of a request in lower case; the wire format allows any number.

    >>> _kind(0)
    'ps'
    """
    if number not in messages.ServerType.values():
        raise InputError(f"server_type is {number}; it must be PS 0, ENTRY 1 or DENSE 2.")
    return messages.ServerType.Name(number).lower()


def machine_resource(
    address: str | None = None, shard_id: int = -1, replica_id: int = -1
) -> ResourceSpec:
    """Returns the free memory in bytes, idle cores and load of this machine; -1: not measured.

    >>> machine_resource("h:1", 1, 2).cpu >= 0
    True
    """
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    idle = max(0.0, cores - load)
    return ResourceSpec(address, shard_id, replica_id, memory, idle, -1.0, load / cores)


def _behaviour(kind: Any, function: Callable[[Any], Any]) -> Behaviour:
    return lambda data, _: to_bytes(function(from_bytes(kind, data)))


def _coded(error: Exception) -> tuple[str, str]:
    code, text = coded(error)
    if code == "INTERNAL":
        _LOG.error("the agent failed", exc_info=error)
    return code, text


_LOOK_S = 1.0
_STATES = {"UNKNOWN": 0, "START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """The addresses of ZooKeeper, of the agent, and of the server that the agent reports."""

    hosts: str
    bzid: str
    server: str
    listen: str = "127.0.0.1:0"
    session_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """A replica of the first generation; `idc` and `cluster` name its data centre."""

    base_name: str
    server_type: str
    task: int
    replica: int = -1
    idc: str | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """A container of the second generation, and the part of a model that its layout gives it."""

    container: Container
    model_name: str
    layout: str
    only: tuple[LayoutFilter, ...] = ()
    idc: str | None = None


def state_of(client: PredictionClient, model_name: str, timeout_s: float = 1.0) -> int:
    """Returns AVAILABLE if a version of a model answers at a server, else the newest one's state.

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
    """Reports the server to ZooKeeper until `stop` is set; `tell` gets the agent's address."""
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
            except kazoo_failures() as error:  # the session reconnects and restores its nodes
                _LOG.warning("ZooKeeper: %r; trying again", error)


def _first_generation(
    plan: AgentPlan, serves: ReplicaPlan, session: Session, client: PredictionClient
) -> tuple[AddressBook, Callable[[], None]]:
    if (serves.idc is None) != (serves.cluster is None):
        raise InputError("an idc and a cluster are one place; give both or none.")
    service = ReplicaPaths(plan.bzid, serves.base_name, serves.idc is not None)
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
