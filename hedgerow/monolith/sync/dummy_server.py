"""Monolith's test server of parameter sync: it stores pushes and answers OK."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.shapes import Int32, Int64
from ...serving.endpoints import IncomingCalls
from ...serving.standard_services import HEALTH_SERVICE, HealthStates, add_reflection, add_service
from ...wire import tensors
from ...wire.codec import from_bytes, to_bytes
from ...wire.messages import tf_serving
from ...wire.rpc import PREDICTION_SERVICE, listen, new_server, plain_code, service_handler
from .strict import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from ...wire.messages.tf_serving import PredictRequest

_ENDINGS = ("_id", "_value")
_THREADS = 4


class ReceivedPush:
    """One received push: its model and signature, and its tensors by name."""

    def __init__(self, request: PredictRequest) -> None:
        self.model_name = request.model_spec.name
        self.signature_name = request.model_spec.signature_name
        self.inputs = {
            name: tensors.to_torch(value, name=name).clone()
            for name, value in sorted(request.inputs.items())
        }

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name} {tuple(v.shape)}" for name, v in self.inputs.items())
        return f"ReceivedPush({self.model_name!r}, {self.signature_name!r}, {inputs})"


class PushReceiver:
    """The server behind `DummySyncServer`. Owns a lock."""

    def __init__(self, address: str) -> None:
        self._lock = threading.Lock()
        self._received: list[ReceivedPush] = []
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="dummy sync server")
        self._server = new_server(self._pool, MAX_MESSAGE_BYTES)
        try:
            self.port = int(listen(self._server, address).rpartition(":")[2])
        except InputError:
            self._pool.shutdown()
            raise
        handler = service_handler(PREDICTION_SERVICE, {"Predict": self._predict}, plain_code)
        self._server.add_generic_rpc_handlers((handler,))
        _tell_about(self._server)
        self._server.start()

    def received(self) -> tuple[ReceivedPush, ...]:
        """Returns the pushes so far, in order of arrival."""
        with self._lock:
            return tuple(self._received)

    def stop(self) -> None:
        """Stops the server and frees the port. A second call does nothing."""
        self._server.stop(None).wait()
        self._pool.shutdown()

    def _predict(self, data: bytes, _: Any) -> bytes:
        request = from_bytes(tf_serving.PredictRequest, data)
        for name in sorted(request.inputs):
            if not name.endswith(_ENDINGS):
                raise InputError(
                    f"input {name!r} ends neither in _id nor in _value; push plain tables."
                )
        push = ReceivedPush(request)
        with self._lock:
            self._received.append(push)
        return to_bytes(tf_serving.PredictResponse(model_spec=request.model_spec))


def _tell_about(server: Any) -> None:
    """Adds the health service, and reflection of all services."""
    arrivals = IncomingCalls(_THREADS // 2)  # the others are for pushes
    states = HealthStates((PREDICTION_SERVICE,), arrivals)
    states.tell(True)
    add_service(server, HEALTH_SERVICE, states.behaviours(), arrivals)
    add_reflection(server, (PREDICTION_SERVICE, HEALTH_SERVICE), arrivals)


class DummySyncServer:
    """Receives pushes at `address` and keeps them.

    Port 0 selects a free port. There is no access check.

    Inputs must end in `_id` or `_value`, as those of plain tables do. Others, such as pushes of a
    multi table, are refused with INVALID_ARGUMENT.

    >>> with DummySyncServer("localhost:0") as server:
    ...     len(server.get_port()), server.received
    (1, ())
    >>> server.shutdown()
    tensor([100])
    """

    def __init__(self, address: str) -> None:
        self._server = create_dummy_sync_server(address)

    @property
    def handle(self) -> PushReceiver:
        """The underlying server."""
        return self._server

    @property
    def received(self) -> tuple[ReceivedPush, ...]:
        """The pushes so far, in order of arrival."""
        return self._server.received()

    def get_port(self) -> Int32[Tensor, "1"]:
        """Returns the port of the server."""
        return torch.tensor([self._server.port], dtype=torch.int32)

    def shutdown(self) -> Int64[Tensor, "1"]:
        """Stops the server. The port is free when this returns."""
        self._server.stop()
        return torch.tensor([100])

    def as_op(self, name: str | None = None) -> Callable[[], None]:
        """Returns a callable that does nothing, because the server is already running."""
        return _nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.shutdown()


def create_dummy_sync_server(address: str) -> PushReceiver:
    """Returns a running server."""
    if not isinstance(address, str) or ":" not in address:
        raise InputError(f"address is {address!r}; write HOST:PORT, as 'localhost:0'.")
    return PushReceiver(address)


def _nothing() -> None:
    """Does nothing."""
