"""The standard health service, which says that a server serves while its models answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .endpoints import SERVICES
from .standard_services import add_services

if TYPE_CHECKING:
    from .registry import Registry

HEALTH_SERVICE = "grpc.health.v1.Health"


class Health:
    """Tells the state of a registry for "" and each service; owns a lock."""

    def __init__(self, registry: Registry, server: Any) -> None:
        from grpc_health.v1 import health

        self._registry = registry
        self._lock = threading.Lock()  # what is told last is what was true last
        self._last: bool | None = None
        self._told = health.HealthServicer()
        add_services(server, {HEALTH_SERVICE: self._told})
        registry.subscribe(self._tell)
        self._tell()

    def drain(self) -> None:
        """Says NOT_SERVING from now on, so that balancers send requests elsewhere."""
        self._registry.unsubscribe(self._tell)
        with self._lock:
            self._told.enter_graceful_shutdown()

    def _tell(self) -> None:
        from grpc_health.v1 import health_pb2

        states = health_pb2.HealthCheckResponse
        with self._lock:
            ready = self._registry.ready()
            if ready == self._last:  # watchers hear of changes alone
                return
            self._last = ready
            state = states.SERVING if ready else states.NOT_SERVING
            for service in ("", *SERVICES):
                self._told.set(service, state)
