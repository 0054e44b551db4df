"""gRPC on plain bytes: services, connections, servers, and errors as a code and a text."""

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
    """A method of a service, with one request message and one response message."""

    path: str
    request: type[Message]
    response: type[Message]


def methods(service: str) -> dict[str, Method]:
    """Returns the methods of a service by name.

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
"""Returns the answer's bytes for a message's bytes; the second argument is gRPC's context."""

Coded = Callable[[Exception], tuple[str, str]]
"""Returns the code and the text of an error, as the peer receives them."""

_Options = Iterable[tuple[str, int]]


class TlsCredentials(Protocol):
    """TLS certificates as PEM text, for example a `serving.channels.ClientTls`."""

    @property
    def ca(self) -> bytes | None:
        """The certificates to trust; None means gRPC's default."""
        ...

    @property
    def certificate(self) -> bytes | None:
        """This side's certificate, for peers that require one."""
        ...

    @property
    def key(self) -> bytes | None:
        """The key of `certificate`."""
        ...


class CallError(HedgerowError):
    """A call that failed, with gRPC's code.

    >>> CallError("UNAVAILABLE", "nobody is there").code
    'UNAVAILABLE'
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def grpc_library() -> Any:
    """Returns the module grpc; raises an error that names the extra if it is missing."""
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError(
            f"serving and publishing need grpcio ({error}); pip install hedgerow[serving]."
        ) from error
    return grpc


# ---- clients


class GrpcConnection:
    """A connection to one address, opened on first use. Safe to use from many threads."""

    def __init__(self, address: str, trust: TlsCredentials | None, options: _Options) -> None:
        grpc = grpc_library()
        # The client does not limit messages; the server has its own limit.
        unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        chosen = [*unlimited, *options]
        if trust is None:
            self._channel: Any = grpc.insecure_channel(address, options=chosen)
        else:
            own = grpc.ssl_channel_credentials(trust.ca, trust.key, trust.certificate)
            self._channel = grpc.secure_channel(address, own, options=chosen)
        self._calls: dict[str, Any] = {}

    def begin(self, path: str, data: bytes, timeout_s: float | None, metadata: Any = None) -> Any:
        """Sends a message; returns a future for answer_of()."""
        call = self._calls.get(path)
        if call is None:
            call = self._calls.setdefault(path, self._channel.unary_unary(path))
        try:
            return call.future(data, timeout=timeout_s, metadata=metadata)
        except ValueError as error:  # grpcio raises it for a closed channel
            raise CallError("CANCELLED", str(error)) from error

    def close(self) -> None:
        """Closes the connection; calls in flight fail with CANCELLED."""
        self._channel.close()


def answer_of(future: Any) -> bytes:
    """Waits for a call; returns its answer, or raises CallError with the server's code and text."""
    error = future.exception()
    if error is not None:
        raise CallError(error.code().name, str(error.details() or error)) from error
    return future.result()


# ---- servers


def new_server(
    pool: Executor, message_bytes: int, *, requests: int | None = None, options: _Options = ()
) -> Any:
    """Returns a gRPC server without services and addresses; `requests` limits calls in flight."""
    chosen = [
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.so_reuseport", 0),  # else two servers on one port would silently share requests
        *options,
    ]
    return grpc_library().server(pool, options=chosen, maximum_concurrent_rpcs=requests)


def listen(server: Any, address: str, credentials: Any = None) -> str:
    """Binds a server to an address; returns the address with the actual port."""
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
    """Returns grpcio's handler of a service; an exception ends a call with its code."""
    grpc = grpc_library()
    found = {
        name: grpc.unary_unary_rpc_method_handler(_answering(behaviour, coded))
        for name, behaviour in behaviours.items()
    }
    return grpc.method_handlers_generic_handler(service, found)


def plain_code(error: Exception) -> tuple[str, str]:
    """Returns the code and text of an error: HedgerowErrors are the caller's fault; logs others."""
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
    """Ends a call with a code and a text; always raises."""
    context.abort(grpc_library().StatusCode[code], text)
    raise AssertionError("abort() always raises")
