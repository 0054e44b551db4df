"""The way to one replica, or to one publisher: calls that end in an answer or in a coded error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..core.errors import HedgerowError, MissingExtraError
from .protocol import PREDICT_PATH, PushMark, read_json, to_json

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # gRPC's own pause grows to two minutes; a replica that is back must be fresh at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)


class Trust(Protocol):
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


class TargetError(HedgerowError, ConnectionError):
    """A call that failed, with the code that gRPC gave it: "UNAVAILABLE", "ABORTED"."""

    def __init__(self, address: str, code: str, text: str) -> None:
        super().__init__(f"{address} answers {code}: {text}")
        self.code = code


def grpc_library() -> Any:
    """The module grpc, or an error that names the extra."""
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError(
            f"publishing needs grpcio ({error}); pip install hedgerow[serving]."
        ) from error
    return grpc


class Call:
    """A call under way."""

    def __init__(self, address: str, future: Any) -> None:
        self._address, self._future = address, future

    def answer(self) -> bytes:
        """Waits; the answer, or TargetError with the code and the text of the other side."""
        error = self._future.exception()
        if error is not None:
            text = str(error.details() or error)
            raise TargetError(self._address, error.code().name, text) from error
        return self._future.result()

    def cancel(self) -> None:
        """Wants no answer any more."""
        self._future.cancel()


class Link:
    """A connection to one address, made when it is first needed; threads may share it."""

    def __init__(self, address: str, trust: Trust | None = None) -> None:
        grpc = grpc_library()
        self.address = address
        if trust is None:
            self._channel: Any = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            own = grpc.ssl_channel_credentials(trust.ca, trust.key, trust.certificate)
            self._channel = grpc.secure_channel(address, own, options=_OPTIONS)
        self._calls: dict[str, Any] = {}

    def ask(
        self, service: str, method: str, plain: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """A call in JSON."""
        return read_json(self.send(f"/{service}/{method}", to_json(plain), timeout_s))

    def begin_predict(self, request: bytes, timeout_s: float, mark: PushMark | None = None) -> Call:
        """A Predict call, marked as a push of ours; the answer comes later."""
        return self._begin(PREDICT_PATH, request, timeout_s, mark)

    def send(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """A call in bytes."""
        return self._begin(path, request, timeout_s, None).answer()

    def _begin(self, path: str, request: bytes, timeout_s: float, mark: PushMark | None) -> Call:
        call = self._calls.get(path)
        if call is None:
            call = self._calls.setdefault(path, self._channel.unary_unary(path))
        metadata = mark.metadata() if mark is not None else None
        try:
            future = call.future(request, timeout=timeout_s, metadata=metadata)
        except ValueError as error:  # grpcio's word for a channel that was closed
            raise TargetError(self.address, "CANCELLED", str(error)) from error
        return Call(self.address, future)

    def close(self) -> None:
        """Ends the connection; calls under way fail with CANCELLED."""
        self._channel.close()
