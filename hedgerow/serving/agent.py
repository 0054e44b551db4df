"""The agent service: who serves what, and what this machine has left, for processes beside it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ..core.errors import InputError
from ..discovery.payloads import ResourceSpec
from ..wire.codec import from_bytes, to_bytes
from ..wire.messages import agent_service as messages
from ..wire.rpc import Behaviour, listen, new_server, service_handler
from ..wire.services import AGENT_SERVICE, methods
from .endpoints import coded

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
    """Knows replicas: a ReplicaWatcher, a ZkBackend, a FileBook."""

    def addresses(self, server_type: str) -> Mapping[str, Sequence[str]]:
        """The replicas of every server of a kind, by its key: "ps:1", or "model:ps_1"."""
        ...


class AgentServer:
    """Answers GetReplicas, GetResource and HeartBeat; `start()` it, or use it in a `with`.

    `resource` tells what the machine has left; without it, what the system says.

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
        """Answers from now on."""
        self._server.start()
        return self

    def stop(self, grace_s: float = 1.0) -> None:
        """Answers no more; requests under way have `grace_s` seconds."""
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
    """The kind of servers that a request asks for; the wire lets any number through.

    >>> _kind(0)
    'ps'
    """
    if number not in messages.ServerType.values():
        raise InputError(f"server_type is {number}; it must be PS 0, ENTRY 1 or DENSE 2.")
    return messages.ServerType.Name(number).lower()


def machine_resource(
    address: str | None = None, shard_id: int = -1, replica_id: int = -1
) -> ResourceSpec:
    """Free memory in bytes, idle cores and load of this machine; -1 for what nobody measures.

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
