"""The gRPC connection to one replica or publisher, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import HedgerowError
from ..wire.rpc import CallError, GrpcConnection, TlsCredentials, answer_of
from .protocol import PREDICT_PATH, PushMark, read_json, to_json

_OPTIONS = (
    # gRPC's own pause grows to two minutes; a replica that is back must be fresh at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)


class TargetError(HedgerowError, ConnectionError):
    """A call that failed, with the code that gRPC gave it: "UNAVAILABLE", "ABORTED"."""

    def __init__(self, address: str, code: str, text: str) -> None:
        super().__init__(f"{address} answers {code}: {text}")
        self.code = code


class ReplicaCall:
    """A call under way."""

    def __init__(self, address: str, future: Any) -> None:
        self._address, self._future = address, future

    def answer(self) -> bytes:
        """Waits; the answer, or TargetError with the code and the text of the other side."""
        try:
            return answer_of(self._future)
        except CallError as error:
            raise TargetError(self._address, error.code, str(error)) from error

    def cancel(self) -> None:
        """Wants no answer any more."""
        self._future.cancel()


class ReplicaLink:
    """A connection to one address, made when it is first needed; threads may share it."""

    def __init__(self, address: str, trust: TlsCredentials | None = None) -> None:
        self.address = address
        self._connection = GrpcConnection(address, trust, _OPTIONS)

    def ask(
        self, service: str, method: str, plain: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """A call in JSON."""
        return read_json(self.send(f"/{service}/{method}", to_json(plain), timeout_s))

    def begin_predict(
        self, request: bytes, timeout_s: float, mark: PushMark | None = None
    ) -> ReplicaCall:
        """A Predict call, marked as a push of ours; the answer comes later."""
        return self._begin(PREDICT_PATH, request, timeout_s, mark)

    def send(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """A call in bytes."""
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
        """Ends the connection; calls under way fail with CANCELLED."""
        self._connection.close()
