"""The gRPC methods and their functions: limits on calls and bytes, decoding, error codes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import HedgerowError
from ..wire import rpc
from ..wire.codec import check_parts, from_bytes, to_bytes
from ..wire.messages import kserve as messages
from ..wire.messages import tf_serving
from ..wire.predict import PlainRequest
from ..wire.rpc import abort
from . import kserve, tensorflow_serving
from .live_model import sync_handler
from .model import ServingError
from .request_context import marked, within

if TYPE_CHECKING:
    from ..wire.pool import Message
    from ..wire.rpc import Method
    from ..wire.tensors import Compat
    from .registry import Registry


class IncomingCalls:
    """Limits calls that wait for a message to `most`; one more cancels the oldest. Owns a lock.

    A call whose client sends nothing occupies a thread. A normal client sends its message with
    the call, so it does not wait long enough to become the oldest.

    >>> IncomingCalls(4).take(iter([b"message"]), None)
    b'message'
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[int, Any] = {}  # contexts by id(); the oldest first

    def take(self, messages: Iterator[bytes], context: Any) -> bytes:
        """Returns the one message of a call."""
        self._begin(context)
        try:
            return next(messages)
        except StopIteration:
            raise ServingError("INVALID_ARGUMENT", "the call has no message; send one.") from None
        finally:
            self._end(context)

    def each(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Yields all messages of a call, and waits for each.

        >>> list(IncomingCalls(4).each(iter([b"one", b"two"]), None))
        [b'one', b'two']
        """
        while True:
            with self.waiting(context):
                data = next(messages, None)
            if data is None:
                return
            yield data

    @contextmanager
    def waiting(self, context: Any) -> Iterator[None]:
        """Counts the call as waiting inside the `with` block."""
        self._begin(context)
        try:
            yield
        finally:
            self._end(context)

    def _begin(self, context: Any) -> None:
        oldest = None
        with self._lock:
            if len(self._waiting) >= self._most:
                oldest = self._waiting.pop(next(iter(self._waiting)))
            self._waiting[id(context)] = context
        if oldest is not None:
            oldest.cancel()

    def _end(self, context: Any) -> None:
        with self._lock:
            self._waiting.pop(id(context), None)


class InFlight:
    """Limits the bytes of the requests in flight to `most`. Owns a lock.

    A decoded request takes several times its bytes, so many large ones would fill the memory.
    Requests of up to SMALL_BYTES are not counted.

    >>> bytes_now = InFlight(1 << 20)
    >>> held = bytes_now.take(1 << 19)
    >>> bytes_now.give_back(held)
    """

    SMALL_BYTES = 128 << 10

    def __init__(self, most: int) -> None:
        self._most, self._now = most, 0
        self._lock = threading.Lock()

    def take(self, size: int) -> int:
        """Returns the bytes to give back. Raises if they do not fit beside other requests."""
        if size <= self.SMALL_BYTES:
            return 0
        with self._lock:
            if self._now and self._now + size > self._most:
                raise ServingError(
                    "RESOURCE_EXHAUSTED",
                    f"requests of {self._now} bytes are being answered, and this one has {size} "
                    f"more; at most {self._most} at a time: ask again later, or for less at once.",
                )
            self._now += size
        return size

    def give_back(self, size: int) -> None:
        """Gives back bytes that take() returned."""
        if size:
            with self._lock:
                self._now -= size


Answer = Callable[[Any], "Message | bytes"]
Observe = Callable[[str, str, float, "Message | PlainRequest | None"], None]
"""Called after each request with the method's path, the code, the seconds, and the request (None
if it could not be decoded)."""

SERVICES = (rpc.PREDICTION_SERVICE, rpc.MODEL_SERVICE, rpc.KSERVE_SERVICE)
_MOST_TEXT_BYTES = 1500  # an error text is sent in a header; clients accept 8 KiB of headers


def answers(
    registry: Registry, compat: Compat, reload_root: Path | None
) -> dict[str, dict[str, Answer]]:
    """Returns the function of every method, by service and name."""
    return {
        rpc.PREDICTION_SERVICE: {
            "Predict": partial(tensorflow_serving.predict, registry, compat=compat),
            "GetModelMetadata": partial(tensorflow_serving.metadata, registry),
        },
        rpc.MODEL_SERVICE: {
            "GetModelStatus": partial(tensorflow_serving.status, registry),
            "HandleReloadConfigRequest": partial(
                tensorflow_serving.reload, registry, root=reload_root
            ),
        },
        rpc.KSERVE_SERVICE: {
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
    arrivals: IncomingCalls,
    most_bytes: int,
) -> list[Any]:
    """Returns one grpcio handler per service.

    Every method has one message and one answer, but is registered as a stream of messages. Clients
    see no difference, and grpcio then calls us before the message has arrived.
    """
    import grpc

    made, room = [], (arrivals, InFlight(most_bytes))
    for service, functions in answers(registry, compat, reload_root).items():
        described = rpc.methods(service)
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
    room: tuple[IncomingCalls, InFlight],
) -> Callable[[Iterator[bytes], Any], bytes]:
    """Returns the handler of a method, from request bytes to answer bytes; errors become codes."""
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
            start_s = time.perf_counter()  # the time that the client takes to send does not count
            held = in_flight.take(len(data))
            request = read(data)
            # Calls to other servers inherit the deadline; pushes are applied in order.
            with within(context.time_remaining()), marked(context.invocation_metadata()):
                answer = function(request)
            return answer if isinstance(answer, bytes) else to_bytes(answer)
        except grpc.RpcError:  # the call ended before its message arrived
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
    """Returns what coded() returns; counts and logs internal errors."""
    code, text = coded(error)
    if code == "INTERNAL":
        registry.counters.add("internal_errors")
        logging.getLogger("hedgerow").error("%s failed", path, exc_info=error)
    return code, text


def coded(error: Exception) -> tuple[str, str]:
    """Returns the code and the text of an error for a client.

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
