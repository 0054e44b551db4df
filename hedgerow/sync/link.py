"""The gRPC connection to one replica or publisher, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import HedgerowError
from ..wire.rpc import CallError, GrpcConnection, TlsCredentials, answer_of
from .protocol import PREDICT_PATH, PushMark, read_json, to_json

_OPTIONS = (
    # gRPC's default backoff grows to two minutes, too long for a replica that has restarted.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)


class TargetError(HedgerowError, ConnectionError):
    """A call that failed. `code` is its gRPC code, such as "UNAVAILABLE" or "ABORTED"."""

    def __init__(self, address: str, code: str, text: str) -> None:
        super().__init__(f"{address} answers {code}: {text}")
        self.code = code


class ReplicaCall:
    """A call in flight."""

    def __init__(self, address: str, future: Any) -> None:
        self._address, self._future = address, future

    def answer(self) -> bytes:
        """Waits for the answer and returns it. Raises `TargetError` if the call failed."""
        try:
            return answer_of(self._future)
        except CallError as error:
            raise TargetError(self._address, error.code, str(error)) from error

    def cancel(self) -> None:
        """Cancels the call."""
        self._future.cancel()


class ReplicaLink:
    """A connection to one address, opened at the first call. Safe from many threads."""

    def __init__(self, address: str, trust: TlsCredentials | None = None) -> None:
        self.address = address
        self._connection = GrpcConnection(address, trust, _OPTIONS)

    def ask(
        self, service: str, method: str, plain: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """Makes a call with JSON and returns the JSON answer."""
        return read_json(self.send(f"/{service}/{method}", to_json(plain), timeout_s))

    def begin_predict(
        self, request: bytes, timeout_s: float, mark: PushMark | None = None
    ) -> ReplicaCall:
        """Starts a Predict call, marked as a push, and returns without waiting for the answer."""
        return self._begin(PREDICT_PATH, request, timeout_s, mark)

    def send(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """Makes a call with bytes and returns the answer."""
        return self._begin(path, request, timeout_s, None).answer()

    def _begin(
        self, path: str, request: bytes, timeout_s: float, mark: PushMark | None
    ) -> ReplicaCall:
        metadata = mark.metadata() if mark is not None else None
        try:
            future = self._connection.begin(path, request, timeout_s, metadata)
        except CallError as error:
            raise TargetError(self.address, error.code, str(error)) from error
        return ReplicaCall(self.address, future)

    def close(self) -> None:
        """Closes the connection. Calls in flight fail with CANCELLED."""
        self._connection.close()
