"""A gRPC server of a registry's models: predictions, status, KServe, health and reflection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

from ..core import checks
from ..core.errors import StateError
from ..wire.rpc import listen, new_server
from ..wire.tensors import Compat, check_compat
from .endpoints import SERVICES, IncomingCalls, Observe, handlers
from .registry import Registry
from .standard_services import HEALTH_SERVICE, Health, add_reflection
from .tls import Tls, check_exposed

_LOOK_S = 0.02
_LATE_S = 0.2  # a task that has waited this long is late: the pool may be too small
_IDLE_S = 5.0  # an additional thread ends when it is idle for this time

_Task = tuple[float, "Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class ElasticPool(Executor):
    """Runs tasks on `few` threads, and on up to `most` if threads are stuck.

    grpcio reads a request in the thread that answers it, so a client that sends half a message
    blocks a thread. A small pool would stop then, and a large pool is slow when all its threads
    are busy. Safe from many threads; owns a lock.

    >>> pool = ElasticPool(1, 4)
    >>> pool.submit(max, 3, 5).result()
    5
    >>> pool.shutdown()
    """

    def __init__(self, few: int, most: int) -> None:
        self._few, self._most = few, most
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._alive = 0
        self._taken = 0  # tasks begun; if it stands still while tasks wait, all threads are stuck
        self._late = False
        self._add(few)
        threading.Thread(target=self._look, name="serving-pool", daemon=True).start()

    @property
    def threads(self) -> int:
        """The number of threads now."""
        return self._alive

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs a function on a thread of the pool; see Executor.submit()."""
        if self._closed.is_set():
            raise RuntimeError("this pool is shut down")
        future: Future[Any] = Future()
        self._tasks.put((time.monotonic(), future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends each thread when it is idle. The threads are daemons; the call does not wait."""
        self._closed.set()
        with self._lock:
            for _ in range(self._alive):
                self._tasks.put(None)

    def _add(self, count: int) -> None:
        with self._lock:
            count = min(count, self._most - self._alive)
            self._alive += max(0, count)
        for _ in range(count):
            threading.Thread(target=self._work, name="serving", daemon=True).start()

    def _look(self) -> None:
        """Adds threads if tasks wait and, since the last look, none has begun or one was late."""
        before = -1
        while not self._closed.wait(_LOOK_S):
            waiting, taken = self._tasks.qsize(), self._taken
            if waiting and (taken == before or self._late):
                self._add(waiting if taken == before else 1)
            before, self._late = taken, False

    def _work(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=_IDLE_S)
            except Empty:
                if self._may_end():
                    return
                continue
            if task is None:
                return
            since, future, fn, args, kwargs = task
            self._taken += 1  # may lose another thread's count, but changes
            if time.monotonic() - since > _LATE_S:
                self._late = True
            _run(future, fn, args, kwargs)
            del task, future, fn, args, kwargs  # frees the request's memory now

    def _may_end(self) -> bool:
        with self._lock:
            if self._alive <= self._few or self._closed.is_set():
                return False
            self._alive -= 1
            return True


def _run(
    future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)


MAX_MESSAGE_BYTES = 64 << 20
MOST_REQUESTS = 512  # in flight; a slow client's request occupies a thread
_LARGE_REQUESTS = 4  # requests of the largest size in flight
_END_S = 5.0  # how long stop() waits for cancelled calls after the grace period
_THREADS = 4  # while no client is slow: more threads only wait for one another
_OPTIONS = (
    # Limits requests in flight per connection, so that one client cannot take all places.
    ("grpc.max_concurrent_streams", 128),
    # Closes old connections, whatever the client does; normal clients reconnect automatically.
    ("grpc.max_connection_age_ms", 1800 * 1000),
    ("grpc.max_connection_age_grace_ms", 300 * 1000),
)


class PredictionServer:
    """A gRPC server for clients of TensorFlow Serving and KServe; `start()` it, or use `with`.

    Port 0 selects a free port, and `address` has it. `compat="typed"` writes typed values, for
    clients that read nothing else. `reload_root` lets clients send a new list of models, whose
    folders must be inside it. `observe` is called after each request, for metrics. An address that
    other machines can reach needs `tls` or `insecure`.

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
        arrivals = IncomingCalls(max(1, most_requests // 2))  # slow clients take at most half
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
        """Starts to answer requests."""
        if self._state != "new":
            raise StateError(f"this server is {self._state}; a server starts once: make a new one.")
        self._server.start()
        self._state = "started"
        return self

    def stop(self, grace_s: float = 5.0) -> None:
        """Accepts no more requests and waits at most `grace_s` seconds for those in flight."""
        if self._state == "stopped":
            return
        self._state = "stopped"
        self._health.drain()
        self._server.stop(grace_s).wait(grace_s + _END_S)
        self._pool.shutdown()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the server is stopped; returns False after `timeout_s` seconds."""
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
