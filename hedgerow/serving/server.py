"""A gRPC server of a registry's models: predictions, states, KServe, health and reflection."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from ..core import checks
from ..core.errors import StateError
from ..wire.rpc import listen, new_server
from ..wire.tensors import Compat, check_compat
from .arrivals import Arrivals
from .endpoints import SERVICES, Observe, handlers
from .exposure import check_exposed
from .health import HEALTH_SERVICE, Health
from .pool import ElasticPool
from .registry import Registry
from .standard_services import add_reflection
from .tls import Tls

MAX_MESSAGE_BYTES = 64 << 20
MOST_REQUESTS = 512  # at a time; a slow client's request holds a thread
_LARGE_REQUESTS = 4  # of the largest size, answered at a time
_END_S = 5.0  # for calls that were ended after the grace
_THREADS = 4  # while no client is slow: more only wait for one another, and slow all down
_OPTIONS = (
    # Requests of one connection at a time: no client takes the place of all others.
    ("grpc.max_concurrent_streams", 128),
    # A connection ends at last, whatever its client does with it; good clients reconnect unseen.
    ("grpc.max_connection_age_ms", 1800 * 1000),
    ("grpc.max_connection_age_grace_ms", 300 * 1000),
)


class PredictionServer:
    """Answers TensorFlow Serving's and KServe's clients; `start()` it, or use it in a `with`.

    Port 0 takes a free port; `address` tells it. `compat="typed"` writes typed values for clients
    that read nothing else. `reload_root` lets clients send a new list of models, whose folders
    must lie inside it. `observe` is called after each request, for metrics. An address that other
    machines reach needs `tls`, or `insecure`.

    >>> with PredictionServer(Registry()) as server:
    ...     server.address.startswith("127.0.0.1:")
    True
    """

    def __init__(
        self,
        registry: Registry,
        address: str = "127.0.0.1:0",
        *,
        tls: Tls | None = None,
        compat: Compat = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        most_requests: int = MOST_REQUESTS,
        reload_root: Path | None = None,
        observe: Observe | None = None,
        insecure: bool = False,
    ) -> None:
        check_compat(compat)
        check_exposed(address, encrypted=tls is not None, insecure=insecure)
        checks.count("max_message_bytes", max_message_bytes, least=1)
        checks.count("most_requests", most_requests, least=1)
        self.registry = registry
        self._pool = ElasticPool(min(_THREADS, most_requests), most_requests)
        self._server = new_server(
            self._pool, max_message_bytes, requests=most_requests, options=_OPTIONS
        )
        arrivals = Arrivals(max(1, most_requests // 2))  # the other half is for quick clients
        self._server.add_generic_rpc_handlers(
            handlers(
                registry,
                compat=compat,
                reload_root=reload_root,
                observe=observe,
                arrivals=arrivals,
                most_bytes=_LARGE_REQUESTS * max_message_bytes,
            )
        )
        try:
            self.address = listen(self._server, address, tls and tls.credentials())
        except Exception:
            self._pool.shutdown()
            raise
        self._health = Health(registry, self._server, arrivals)
        add_reflection(self._server, (*SERVICES, HEALTH_SERVICE), arrivals)
        self._state = "new"

    def start(self) -> Self:
        """Answers from now on."""
        if self._state != "new":
            raise StateError(f"this server is {self._state}; a server starts once: make a new one.")
        self._server.start()
        self._state = "started"
        return self

    def stop(self, grace_s: float = 5.0) -> None:
        """Takes no more requests and waits for those it has, for at most `grace_s` seconds."""
        if self._state == "stopped":
            return
        self._state = "stopped"
        self._health.drain()
        self._server.stop(grace_s).wait(grace_s + _END_S)
        self._pool.shutdown()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the server was stopped; whether it was."""
        return not self._server.wait_for_termination(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
