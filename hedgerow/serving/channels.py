"""The way to a gRPC server: channels that take messages of ours and give answers or errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..core.errors import HedgerowError, InputError, MissingExtraError
from ..wire.codec import from_bytes, to_bytes
from .model import ServingError

if TYPE_CHECKING:
    from ..wire.pool import Message
    from ..wire.services import Method

# An embedding request may be of any size; what a server takes is the server's decision.
_UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client knows its server, and shows who it is: PEM texts.

    Without `ca` the certificates that gRPC brings are trusted. With `certificate` and `key` the
    client shows a certificate of its own, as mTLS asks.

    >>> ClientTls(ca=b"-----BEGIN CERTIFICATE-----").key is None
    True
    """

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InputError("a certificate and its key come together; pass both or none.")


def grpc_library() -> Any:
    """The module grpc, or an error that names the extra."""
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError(
            f"serving needs grpcio ({error}); pip install hedgerow[serving]."
        ) from error
    return grpc


class Channel:
    """A connection to one address, made when it is first needed; many threads may share it."""

    def __init__(self, address: str, tls: ClientTls | None = None) -> None:
        grpc = grpc_library()
        self.address = address
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=_UNLIMITED)
        else:
            trust = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
            self._channel = grpc.secure_channel(address, trust, options=_UNLIMITED)
        self._calls: dict[str, Any] = {}

    def begin(self, method: Method, request: Message, timeout_s: float | None) -> Pending:
        """Sends a request; the answer comes later."""
        call = self._calls.get(method.path)
        if call is None:
            call = self._calls.setdefault(method.path, self._channel.unary_unary(method.path))
        try:
            future = call.future(to_bytes(request), timeout=timeout_s)
        except ValueError as error:  # grpcio's word for a channel that was closed
            raise ServingError("CANCELLED", f"the client of {self.address}: {error}") from error
        return Pending(self.address, method, future)

    def call(self, method: Method, request: Message, timeout_s: float | None) -> Any:
        """Sends a request and waits for its answer."""
        return self.begin(method, request, timeout_s).answer()

    def close(self) -> None:
        """Ends the connection; calls under way fail with CANCELLED."""
        self._channel.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class Pending:
    """A call under way."""

    def __init__(self, address: str, method: Method, future: Any) -> None:
        self.address, self._method, self._future = address, method, future

    def answer(self) -> Any:
        """Waits; the answer, or ServingError with the code and the text of the server."""
        error = self._future.exception()
        if error is not None:
            text = error.details() or str(error)
            raise ServingError(error.code().name, text + _hint(text)) from error
        try:
            return from_bytes(self._method.response, self._future.result())
        except HedgerowError as damaged:
            raise ServingError("INTERNAL", f"{self.address} answers: {damaged}") from damaged

    def cancel(self) -> None:
        """Gives the call up; harmless after its end."""
        self._future.cancel()

    def when_done(self, tell: Callable[[Pending], None]) -> None:
        """Calls `tell` at the end, on a thread of gRPC."""
        self._future.add_done_callback(lambda _: tell(self))


def _hint(text: str) -> str:
    """What to do about a refused handshake: gRPC tells its symptoms only.

    >>> _hint("ipv4:127.0.0.1:1: Connection refused")
    ''
    """
    if "Socket closed" in text:
        return (
            "; a server that wants TLS, or a certificate of the client, ends connections so: "
            "pass tls=ClientTls(ca=..., certificate=..., key=...)."
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            "; the server's certificate is not trusted: pass who signed it, tls=ClientTls(ca=...)"
            ", or renew it."
        )
    if "Hostname Verification" in text:
        return "; the server's certificate is for another name: connect by the name in it."
    return ""
