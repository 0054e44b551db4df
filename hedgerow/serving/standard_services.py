"""gRPC's standard services: health, which reports whether models answer, and reflection.

By default grpcio decodes their messages in the thread that serves all connections. A message that
it cannot decode leaves its stream open there for ever. A connection has 128 streams, and a server
waits for each of them when it stops. So these handlers take bytes and refuse invalid messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..wire.codec import from_bytes, to_bytes
from ..wire.rpc import abort
from .endpoints import SERVICES, IncomingCalls

if TYPE_CHECKING:
    from .registry import Registry


Read = Callable[[bytes, Any], Any]
_MOST_BYTES = 64 << 10  # per message, which holds the name of a service or file


def add_service(
    server: Any, name: str, behaviours: Mapping[str, Callable[..., Any]], arrivals: IncomingCalls
) -> None:
    """Adds one of gRPC's standard services to a server.

    `behaviours` has a function for each method. It takes a message (or an iterator of messages)
    and gRPC's context, and returns an answer (or an iterator of answers). `arrivals` limits the
    calls that wait for messages.
    """
    import grpc

    handlers = {
        method.name: _handler(method, behaviours[method.name], arrivals)
        for method in _methods(name)
        if method.name in behaviours
    }
    found = grpc.method_handlers_generic_handler(name, handlers)
    server.add_generic_rpc_handlers((found,))


def add_reflection(server: Any, services: tuple[str, ...], arrivals: IncomingCalls) -> None:
    """Adds reflection, by which clients such as grpcurl list services and messages."""
    from grpc_health.v1 import health_pb2
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    from ..wire.pool import new_pool

    others: list[Any] = [health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR]
    names = (*services, reflection.SERVICE_NAME)
    servicer = reflection.ReflectionServicer(names, pool=new_pool(others))
    behaviours = {"ServerReflectionInfo": servicer.ServerReflectionInfo}
    add_service(server, reflection.SERVICE_NAME, behaviours, arrivals)


def _methods(service: str) -> list[Any]:
    from grpc_health.v1 import health_pb2
    from grpc_reflection.v1alpha import reflection_pb2

    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        for described in file.services_by_name.values():
            if described.full_name == service:
                return list(described.methods)
    raise InputError(f"{service!r} is no service of gRPC's own.")


def _handler(method: Any, behaviour: Callable[..., Any], arrivals: IncomingCalls) -> Any:
    """Returns a grpcio handler of a method, on bytes."""
    import grpc

    read = _reader(method)
    if method.client_streaming:
        both_ways = _both_ways(behaviour, read, arrivals)
        return grpc.stream_stream_rpc_method_handler(both_ways)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_told_later(behaviour, read))

    def answer(data: bytes, context: Any) -> bytes:
        return to_bytes(behaviour(read(data, context), context))

    return grpc.unary_unary_rpc_method_handler(answer)


def _reader(method: Any) -> Read:
    from google.protobuf.message_factory import GetMessageClass

    kind = GetMessageClass(method.input_type)

    def read(data: bytes, context: Any) -> Any:
        try:
            if len(data) > _MOST_BYTES:
                raise InputError(f"the message has {len(data)} bytes; at most {_MOST_BYTES}.")
            return from_bytes(kind, data)
        except InputError as error:
            text = str(error)
        return abort(context, "INVALID_ARGUMENT", text)

    return read


def _both_ways(
    behaviour: Callable[..., Any], read: Read, arrivals: IncomingCalls
) -> Callable[..., Iterator[bytes]]:
    def answer(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        requests = (read(data, context) for data in arrivals.each(messages, context))
        for response in behaviour(requests, context):
            yield to_bytes(response)

    return answer


def _told_later(behaviour: Callable[..., Any], read: Read) -> Callable[..., None]:
    """Returns a handler that sends a stream of answers from a thread of its own.

    A client that does not read then blocks only that thread, and none of the server's pool.
    """

    def send_all(responses: Iterator[Any], send: Callable[[bytes | None], None]) -> None:
        for response in responses:
            send(to_bytes(response))
        send(None)

    def answer(data: bytes, context: Any, send: Callable[[bytes | None], None]) -> None:
        given = (behaviour(read(data, context), context), send)
        threading.Thread(target=send_all, args=given, name="serving-told", daemon=True).start()

    answer.experimental_non_blocking = True  # type: ignore[attr-defined]
    answer.experimental_thread_pool = None  # type: ignore[attr-defined]
    return answer


HEALTH_SERVICE = "grpc.health.v1.Health"


class HealthStates:
    """The health state of a server's services, with its watchers. Owns a lock.

    grpcio's own servicer sends while it holds its lock. The thread that handles all calls' events
    needs that lock when a watcher leaves, so a server could deadlock. This class sends nothing
    while it holds its lock.
    """

    def __init__(self, services: tuple[str, ...], arrivals: IncomingCalls) -> None:
        self._services = frozenset(("", *services))
        self._arrivals = arrivals
        self._changed = threading.Condition()
        self._serving = False

    def tell(self, serving: bool) -> None:
        """Sets the state, and sends it to watchers if it changed."""
        with self._changed:
            self._serving = serving
            self._changed.notify_all()

    def behaviours(self) -> dict[str, Callable[..., Any]]:
        """Returns the function of each method."""
        return {"Check": self._check, "Watch": self._watch}

    def _check(self, request: Any, context: Any) -> Any:
        from grpc_health.v1 import health_pb2

        if request.service not in self._services:
            abort(context, "NOT_FOUND", "this server has no service of that name.")
        return health_pb2.HealthCheckResponse(status=self._state(request.service))

    def _watch(self, request: Any, context: Any) -> Iterator[Any]:
        """Yields the state now and after every change, until the call ends."""
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
        """Waits for a state other than `told` and returns it; returns None when the call ends."""
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
    """Reports whether a registry is ready, as the health of every service. Owns a lock."""

    def __init__(self, registry: Registry, server: Any, arrivals: IncomingCalls) -> None:
        self._registry = registry
        self._lock = threading.Lock()  # so that the last report is the latest state
        self._drained = False
        self._states = HealthStates(SERVICES, arrivals)
        add_service(server, HEALTH_SERVICE, self._states.behaviours(), arrivals)
        registry.subscribe(self._tell)
        self._tell()

    def drain(self) -> None:
        """Reports NOT_SERVING from now on, so that load balancers send requests elsewhere."""
        self._registry.unsubscribe(self._tell)
        with self._lock:
            self._drained = True
            self._states.tell(False)

    def _tell(self) -> None:
        with self._lock:
            self._states.tell(self._registry.ready() and not self._drained)
