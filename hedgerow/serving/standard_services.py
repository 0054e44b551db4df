"""gRPC's own services, health and reflection, over bytes that we read.

grpcio would read messages in the thread that serves all connections. One that it cannot read ends
twice there, and its stream never: a connection has 128 of them, and a server waits for each at its
end. So grpcio gets bytes, and what is no message is refused by us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core.errors import InputError
from ..wire.codec import from_bytes, to_bytes
from ..wire.rpc import abort
from .arrivals import Arrivals

Read = Callable[[bytes, Any], Any]
_MOST_BYTES = 64 << 10  # of a message: it holds the name of a service or a file


def add_service(
    server: Any, name: str, behaviours: Mapping[str, Callable[..., Any]], arrivals: Arrivals
) -> None:
    """Answers the methods of a service that a module of gRPC describes.

    `behaviours` has a function for each method, of a message and gRPC's context; the answers of a
    stream come from an iterator. A call that waits for messages takes a place of `arrivals`.
    """
    import grpc

    handlers = {
        method.name: _handler(method, behaviours[method.name], arrivals)
        for method in _methods(name)
        if method.name in behaviours
    }
    found = grpc.method_handlers_generic_handler(name, handlers)
    server.add_generic_rpc_handlers((found,))


def add_reflection(server: Any, services: tuple[str, ...], arrivals: Arrivals) -> None:
    """Tells clients such as grpcurl which services and messages there are."""
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


def _handler(method: Any, behaviour: Callable[..., Any], arrivals: Arrivals) -> Any:
    """What grpcio calls for a method, with bytes."""
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
    behaviour: Callable[..., Any], read: Read, arrivals: Arrivals
) -> Callable[..., Iterator[bytes]]:
    def answer(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        requests = (read(data, context) for data in arrivals.each(messages, context))
        for response in behaviour(requests, context):
            yield to_bytes(response)

    return answer


def _told_later(behaviour: Callable[..., Any], read: Read) -> Callable[..., None]:
    """Answers are sent by a thread of their own: those of the server are for calls that end.

    A client that does not read blocks only the thread that sends to it.
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
