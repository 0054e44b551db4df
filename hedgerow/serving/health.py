"""The standard health service, which says that a server serves while its models answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..wire.rpc import abort
from .arrivals import Arrivals
from .endpoints import SERVICES
from .standard_services import add_service

if TYPE_CHECKING:
    from .registry import Registry

HEALTH_SERVICE = "grpc.health.v1.Health"


class HealthStates:
    """The health of services that share one state. Owns a lock.

    grpcio's own servicer sends while it holds its lock, which the thread that brings the news of
    every call takes when a watcher leaves: a server whose watchers come and go would stop for
    ever. Here nothing is sent with the lock held.
    """

    def __init__(self, services: tuple[str, ...], arrivals: Arrivals) -> None:
        self._services = frozenset(("", *services))
        self._arrivals = arrivals
        self._changed = threading.Condition()
        self._serving = False

    def tell(self, serving: bool) -> None:
        """The state from now on, which watchers hear if it is another."""
        with self._changed:
            self._serving = serving
            self._changed.notify_all()

    def behaviours(self) -> dict[str, Callable[..., Any]]:
        """A function for each method."""
        return {"Check": self._check, "Watch": self._watch}

    def _check(self, request: Any, context: Any) -> Any:
        from grpc_health.v1 import health_pb2

        if request.service not in self._services:
            abort(context, "NOT_FOUND", "this server has no service of that name.")
        return health_pb2.HealthCheckResponse(status=self._state(request.service))

    def _watch(self, request: Any, context: Any) -> Iterator[Any]:
        """The state now, and after every change until the call ends."""
        from grpc_health.v1 import health_pb2

        ended = threading.Event()

        def end() -> None:
            with self._changed:
                ended.set()
                self._changed.notify_all()

        told: int | None = None
        if context.add_callback(end):
            with self._arrivals.waiting(context):
                while (told := self._state_after(told, request.service, ended)) is not None:
                    yield health_pb2.HealthCheckResponse(status=told)

    def _state_after(self, told: int | None, service: str, ended: threading.Event) -> int | None:
        """The next state that is another than `told`; None at the end of the call."""
        with self._changed:
            self._changed.wait_for(lambda: ended.is_set() or self._state(service) != told)
            return None if ended.is_set() else self._state(service)

    def _state(self, service: str) -> int:
        from grpc_health.v1 import health_pb2

        states = health_pb2.HealthCheckResponse
        if service not in self._services:
            return states.SERVICE_UNKNOWN
        return states.SERVING if self._serving else states.NOT_SERVING


class Health:
    """Tells the state of a registry for "" and each service; owns a lock."""

    def __init__(self, registry: Registry, server: Any, arrivals: Arrivals) -> None:
        self._registry = registry
        self._lock = threading.Lock()  # what is told last is what was true last
        self._drained = False
        self._states = HealthStates(SERVICES, arrivals)
        add_service(server, HEALTH_SERVICE, self._states.behaviours(), arrivals)
        registry.subscribe(self._tell)
        self._tell()

    def drain(self) -> None:
        """Says NOT_SERVING from now on, so that balancers send requests elsewhere."""
        self._registry.unsubscribe(self._tell)
        with self._lock:
            self._drained = True
            self._states.tell(False)

    def _tell(self) -> None:
        with self._lock:
            self._states.tell(self._registry.ready() and not self._drained)
