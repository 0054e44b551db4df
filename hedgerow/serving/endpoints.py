"""Which function answers which method, and how its errors become codes; bytes in, bytes out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import HedgerowError
from ..wire import services
from ..wire.codec import from_bytes, to_bytes
from ..wire.messages import kserve as messages
from ..wire.messages import tf_serving
from ..wire.plain_request import PlainRequest
from ..wire.rpc import abort
from ..wire.screen import check_parts
from . import about, answer, kserve, reload
from .arrivals import Arrivals, InFlight
from .deadline import within
from .model import ServingError
from .push_marks import marked
from .sync_service import sync_handler

if TYPE_CHECKING:
    from ..wire.pool import Message
    from ..wire.services import Method
    from ..wire.tensors import Compat
    from .registry import Registry

Answer = Callable[[Any], "Message | bytes"]
Observe = Callable[[str, str, float, "Message | PlainRequest | None"], None]
"""Called after each request: the method's path, its code, its seconds, and what was asked (None
where the bytes were no message)."""

SERVICES = (services.PREDICTION_SERVICE, services.MODEL_SERVICE, services.KSERVE_SERVICE)
_MOST_TEXT_BYTES = 1500  # an error travels in a header, and clients take 8 KiB of those


def answers(
    registry: Registry, compat: Compat, reload_root: Path | None
) -> dict[str, dict[str, Answer]]:
    """The function of every method, by service and name."""
    return {
        services.PREDICTION_SERVICE: {
            "Predict": partial(answer.predict, registry, compat=compat),
            "GetModelMetadata": partial(about.metadata, registry),
        },
        services.MODEL_SERVICE: {
            "GetModelStatus": partial(about.status, registry),
            "HandleReloadConfigRequest": partial(reload.reload, registry, root=reload_root),
        },
        services.KSERVE_SERVICE: {
            "ServerLive": lambda _: messages.ServerLiveResponse(live=True),
            "ServerReady": lambda _: messages.ServerReadyResponse(ready=registry.ready()),
            "ModelReady": lambda request: messages.ModelReadyResponse(
                ready=kserve.ready(registry, request)
            ),
            "ServerMetadata": lambda _: messages.ServerMetadataResponse(
                name="hedgerow", version=metadata.version("hedgerow")
            ),
            "ModelMetadata": partial(kserve.metadata, registry),
            "ModelInfer": partial(kserve.infer, registry, compat=compat),
        },
    }


def handlers(
    registry: Registry,
    *,
    compat: Compat = None,
    reload_root: Path | None = None,
    observe: Observe | None = None,
    arrivals: Arrivals,
    most_bytes: int,
) -> list[Any]:
    """What grpcio calls, one handler a service.

    Every method has one message and one answer. They are registered as streams of messages, which
    look the same to clients: grpcio then calls us before the message is there, not after.
    """
    import grpc

    made, room = [], (arrivals, InFlight(most_bytes))
    for service, functions in answers(registry, compat, reload_root).items():
        described = services.methods(service)
        behaviours = {
            name: grpc.stream_unary_rpc_method_handler(
                _behaviour(described[name], function, registry, observe, room)
            )
            for name, function in functions.items()
        }
        made.append(grpc.method_handlers_generic_handler(service, behaviours))
    return [*made, sync_handler(registry, partial(failure, registry, "a call of a publisher"))]


def _behaviour(
    method: Method,
    function: Answer,
    registry: Registry,
    observe: Observe | None,
    room: tuple[Arrivals, InFlight],
) -> Callable[[Iterator[bytes], Any], bytes]:
    """From a request's bytes to the answer's; an error ends the call with its code."""
    import grpc

    kind, path = method.request, method.path
    arrivals, in_flight = room
    plain = PlainRequest.read if kind is tf_serving.PredictRequest else None

    def read(data: bytes) -> Message | PlainRequest:
        found = None if plain is None else plain(data)
        if found is None:
            check_parts(kind, data)
            found = from_bytes(kind, data)
        return found

    def behave(messages: Iterator[bytes], context: Any) -> bytes:
        start_s, request, code, text, held = time.perf_counter(), None, "OK", "", 0
        try:
            data = arrivals.take(messages, context)
            start_s = time.perf_counter()  # what the client takes to send is not ours
            held = in_flight.take(len(data))
            request = read(data)
            # What the model asks of others ends in time; what publishers push is in order.
            with within(context.time_remaining()), marked(context.invocation_metadata()):
                answer = function(request)
            return answer if isinstance(answer, bytes) else to_bytes(answer)
        except grpc.RpcError:  # the client went away, or was too slow, before its message came
            code = "CANCELLED"
            raise
        except Exception as error:
            code, text = failure(registry, path, error)
        finally:
            in_flight.give_back(held)
            if observe is not None:
                observe(path, code, time.perf_counter() - start_s, request)
        return abort(context, code, text)

    return behave


def failure(registry: Registry, path: str, error: Exception) -> tuple[str, str]:
    """As coded(); what is no fault of the client is counted, and told in the log."""
    code, text = coded(error)
    if code == "INTERNAL":
        registry.counters.add("internal_errors")
        logging.getLogger("hedgerow").error("%s failed", path, exc_info=error)
    return code, text


def coded(error: Exception) -> tuple[str, str]:
    """The code and the text of an error, as a client gets them.

    >>> coded(ServingError("NOT_FOUND", "no such model"))
    ('NOT_FOUND', 'no such model')
    """
    if isinstance(error, ServingError):
        return error.code, _short(str(error))
    if isinstance(error, MemoryError):
        return "RESOURCE_EXHAUSTED", _short(f"the server has no memory for this: {error}")
    if isinstance(error, HedgerowError):
        return "INVALID_ARGUMENT", _short(str(error))
    return "INTERNAL", _short(f"{type(error).__name__}: {error}")


def _short(text: str) -> str:
    data = text.encode(errors="replace")
    if len(data) <= _MOST_TEXT_BYTES:
        return text
    return data[:_MOST_TEXT_BYTES].decode(errors="ignore") + " ..."
