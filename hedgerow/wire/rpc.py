"""gRPC with plain bytes: services, connections, servers, and errors as a code and a text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ..core.errors import HedgerowError, InputError, MissingExtraError

if TYPE_CHECKING:
    from .pool import Message


PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
KSERVE_SERVICE = "inference.GRPCInferenceService"
AGENT_SERVICE = "monolith.serving.agent_service.AgentService"


@dataclass(frozen=True, slots=True)
class Method:
    """One call of a service: all of ours send one message and get one."""

    path: str
    request: type[Message]
    response: type[Message]


def methods(service: str) -> dict[str, Method]:
    """The methods of a service by name.

    >>> methods(MODEL_SERVICE)["GetModelStatus"].path
    '/tensorflow.serving.ModelService/GetModelStatus'
    """
    from google.protobuf.message_factory import GetMessageClass

    from .pool import POOL

    return {
        method.name: Method(
            f"/{service}/{method.name}",
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for method in POOL.FindServiceByName(service).methods
    }


Behaviour = Callable[[bytes, Any], bytes]
"""What a method does with a message's bytes; the second argument is gRPC's context."""

Coded = Callable[[Exception], tuple[str, str]]
"""The code and the text of an error, as the other side gets them."""

_Options = Iterable[tuple[str, int]]


class TlsCredentials(Protocol):
    """PEM texts: whom to trust, and who one is. `serving.channels.ClientTls` is one."""

    @property
    def ca(self) -> bytes | None:
        """Certificates to trust; gRPC's own if None."""
        ...

    @property
    def certificate(self) -> bytes | None:
        """The own certificate, if the other side asks for one."""
        ...

    @property
    def key(self) -> bytes | None:
        """Its key."""
        ...


class CallError(HedgerowError):
    """A call without an answer, with the code that gRPC gave it.

    >>> CallError("UNAVAILABLE", "nobody is there").code
    'UNAVAILABLE'
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def grpc_library() -> Any:
    """The module grpc, or an error that names the extra."""
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError(
            f"serving and publishing need grpcio ({error}); pip install hedgerow[serving]."
        ) from error
    return grpc


# ---- clients


class GrpcConnection:
    """A connection to one address, made when it is first needed; threads may share it."""

    def __init__(self, address: str, trust: TlsCredentials | None, options: _Options) -> None:
        grpc = grpc_library()
        # A message may be of any size; what a server takes is the server's decision.
        unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        chosen = [*unlimited, *options]
        if trust is None:
            self._channel: Any = grpc.insecure_channel(address, options=chosen)
        else:
            own = grpc.ssl_channel_credentials(trust.ca, trust.key, trust.certificate)
            self._channel = grpc.secure_channel(address, own, options=chosen)
        self._calls: dict[str, Any] = {}

    def begin(self, path: str, data: bytes, timeout_s: float | None, metadata: Any = None) -> Any:
        """Sends a message; a future of the answer's bytes, which answer_of() reads."""
        call = self._calls.get(path)
        if call is None:
            call = self._calls.setdefault(path, self._channel.unary_unary(path))
        try:
            return call.future(data, timeout=timeout_s, metadata=metadata)
        except ValueError as error:  # grpcio's word for a channel that was closed
            raise CallError("CANCELLED", str(error)) from error

    def close(self) -> None:
        """Ends the connection; calls under way fail with CANCELLED."""
        self._channel.close()


def answer_of(future: Any) -> bytes:
    """Waits for a call; its answer, or CallError with the code and the text of the other side."""
    error = future.exception()
    if error is not None:
        raise CallError(error.code().name, str(error.details() or error)) from error
    return future.result()


# ---- servers


def new_server(
    pool: Executor, message_bytes: int, *, requests: int | None = None, options: _Options = ()
) -> Any:
    """A gRPC server without services and addresses; at most `requests` calls at a time."""
    chosen = [
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.so_reuseport", 0),  # two servers on one port would share its requests unseen
        *options,
    ]
    return grpc_library().server(pool, options=chosen, maximum_concurrent_rpcs=requests)


def listen(server: Any, address: str, credentials: Any = None) -> str:
    """Binds a server; the address with the port in use."""
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise InputError(
            f"address {address!r} cannot be listened on: {error}; give HOST:PORT with a free port, "
            "or port 0."
        ) from error
    if address.startswith("unix:"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def service_handler(service: str, behaviours: Mapping[str, Behaviour], coded: Coded) -> Any:
    """What grpcio calls for the methods of a service; an error ends a call with its code."""
    grpc = grpc_library()
    found = {
        name: grpc.unary_unary_rpc_method_handler(_answering(behaviour, coded))
        for name, behaviour in behaviours.items()
    }
    return grpc.method_handlers_generic_handler(service, found)


def plain_code(error: Exception) -> tuple[str, str]:
    """The code and the text of an error: what we refuse is the caller's mistake, else ours."""
    if isinstance(error, HedgerowError):
        return "INVALID_ARGUMENT", str(error)
    logging.getLogger("hedgerow").error("a call failed", exc_info=error)
    return "INTERNAL", f"{type(error).__name__}: {error}"


def _answering(behaviour: Behaviour, coded: Coded) -> Behaviour:
    def answer(data: bytes, context: Any) -> bytes:
        try:
            return behaviour(data, context)
        except Exception as error:
            code, text = coded(error)
        abort(context, code, text)

    return answer


def abort(context: Any, code: str, text: str) -> NoReturn:
    """Ends a call with a code."""
    context.abort(grpc_library().StatusCode[code], text)
    raise AssertionError("abort() always raises")
