"""gRPC's own services, health and reflection, over bytes that we read.

grpcio would read messages in the thread that serves all connections. One that it cannot read ends
twice there, and its stream never: a connection has 128 of them, and a server waits for each at its
end. So grpcio gets bytes, and what is no message is refused by us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core.errors import InputError
from ..wire.codec import from_bytes, to_bytes
from ..wire.rpc import abort

Read = Callable[[bytes, Any], Any]


def add_services(server: Any, services: Mapping[str, Any]) -> None:
    """Answers the methods of services: `Health` and so on by its servicer's functions.

    The keys are the full names of services that a servicer's module describes.
    """
    import grpc

    for name, servicer in services.items():
        handlers = {
            method.name: _handler(method, getattr(servicer, method.name))
            for method in _methods(name)
            if hasattr(servicer, method.name)
        }
        found = grpc.method_handlers_generic_handler(name, handlers)
        server.add_generic_rpc_handlers((found,))


def _methods(service: str) -> list[Any]:
    from grpc_health.v1 import health_pb2
    from grpc_reflection.v1alpha import reflection_pb2

    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        for described in file.services_by_name.values():
            if described.full_name == service:
                return list(described.methods)
    raise InputError(f"{service!r} is no service of gRPC's own.")


def _handler(method: Any, behaviour: Callable[..., Any]) -> Any:
    """What grpcio calls for a method, with bytes."""
    import grpc

    read = _reader(method)
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(_both_ways(behaviour, read))
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
            return from_bytes(kind, data)
        except InputError as error:
            text = str(error)
        return abort(context, "INVALID_ARGUMENT", text)

    return read


def _both_ways(behaviour: Callable[..., Any], read: Read) -> Callable[..., Iterator[bytes]]:
    def answer(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        requests = (read(data, context) for data in messages)
        for response in behaviour(requests, context):
            yield to_bytes(response)

    return answer


def _told_later(behaviour: Callable[..., Any], read: Read) -> Callable[..., None]:
    """Answers come by a function that grpcio gives, from any thread: no thread waits for them."""

    def answer(data: bytes, context: Any, send: Callable[[bytes | None], None]) -> None:
        behaviour(
            read(data, context),
            context,
            lambda response: send(None if response is None else to_bytes(response)),
        )

    answer.experimental_non_blocking = True  # type: ignore[attr-defined]
    answer.experimental_thread_pool = None  # type: ignore[attr-defined]
    return answer
