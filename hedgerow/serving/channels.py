"""The way to a gRPC server: channels that take messages of ours and give answers or errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..core.errors import HedgerowError, InputError
from ..wire.codec import from_bytes, to_bytes
from ..wire.rpc import CallError, Connection, answer_of
from .model import ServingError

if TYPE_CHECKING:
    from ..wire.pool import Message
    from ..wire.services import Method


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


class Channel:
    """A connection to one address, made when it is first needed; many threads may share it."""

    def __init__(self, address: str, tls: ClientTls | None = None) -> None:
        self.address = address
        self._connection = Connection(address, tls, ())

    def begin(self, method: Method, request: Message, timeout_s: float | None) -> Pending:
        """Sends a request; the answer comes later."""
        try:
            future = self._connection.begin(method.path, to_bytes(request), timeout_s)
        except CallError as error:
            raise ServingError(error.code, f"the client of {self.address}: {error}") from error
        return Pending(self.address, method, future)

    def call(self, method: Method, request: Message, timeout_s: float | None) -> Any:
        """Sends a request and waits for its answer."""
        return self.begin(method, request, timeout_s).answer()

    def close(self) -> None:
        """Ends the connection; calls under way fail with CANCELLED."""
        self._connection.close()

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
        try:
            data = answer_of(self._future)
        except CallError as error:
            raise ServingError(error.code, f"{error}{_hint(str(error))}") from error
        try:
            return from_bytes(self._method.response, data)
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
