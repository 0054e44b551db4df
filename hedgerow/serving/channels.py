"""gRPC channels of a client, to one server and to the replicas of a model."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..core import process_state
from ..core.errors import HedgerowError, InputError, StateError
from ..wire.codec import from_bytes, to_bytes
from ..wire.rpc import CallError, GrpcConnection, answer_of
from .model import ServingError

if TYPE_CHECKING:
    from ..wire.pool import Message
    from ..wire.rpc import Method


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The TLS certificates of a client, as PEM text.

    `ca` are the certificate authorities to trust; the default is those of gRPC. With `certificate`
    and `key` the client identifies itself to the server (mTLS).

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
    """A connection to one address, opened on first use. Safe to use from many threads."""

    def __init__(self, address: str, tls: ClientTls | None = None) -> None:
        self.address = address
        self._connection = GrpcConnection(address, tls, ())

    def begin(self, method: Method, request: Message, timeout_s: float | None) -> PendingCall:
        """Sends a request and returns without waiting for the answer."""
        try:
            future = self._connection.begin(method.path, to_bytes(request), timeout_s)
        except CallError as error:
            raise ServingError(error.code, f"the client of {self.address}: {error}") from error
        return PendingCall(self.address, method, future)

    def call(self, method: Method, request: Message, timeout_s: float | None) -> Any:
        """Sends a request and returns its answer."""
        return self.begin(method, request, timeout_s).answer()

    def close(self) -> None:
        """Closes the connection; calls in flight fail with CANCELLED."""
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


class PendingCall:
    """A call in flight."""

    def __init__(self, address: str, method: Method, future: Any) -> None:
        self.address, self._method, self._future = address, method, future

    def answer(self) -> Any:
        """Waits for the answer and returns it, or raises ServingError with the server's code."""
        try:
            data = answer_of(self._future)
        except CallError as error:
            raise ServingError(error.code, f"{error}{_hint(str(error))}") from error
        try:
            return from_bytes(self._method.response, data)
        except HedgerowError as damaged:
            raise ServingError("INTERNAL", f"{self.address} answers: {damaged}") from damaged

    def cancel(self) -> None:
        """Cancels the call; has no effect after its end."""
        self._future.cancel()

    def when_done(self, tell: Callable[[PendingCall], None]) -> None:
        """Calls `tell` when the call ends, on a gRPC thread."""
        self._future.add_done_callback(lambda _: tell(self))


def _hint(text: str) -> str:
    """Returns how to fix a failed TLS handshake, since gRPC's error names only the symptom.

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
            "; the server's certificate is not trusted: pass its authority, tls=ClientTls(ca=...)"
            ", or renew it."
        )
    if "Hostname Verification" in text:
        return "; the server's certificate is for another name: connect by the name in it."
    return ""


_SHARED_NAME = "serving/replicas"


@dataclass(slots=True)
class _OpenChannel:
    """A channel and the number of calls that use it."""

    channel: Channel
    users: int = 0


@dataclass(slots=True)
class _Channels:
    open: dict[str, _OpenChannel] = field(default_factory=dict)
    known: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Replicas:
    """Replica addresses by key ("ps:1" or "model:ps_1"); inside `with`, the process's current ones.

    With `hedge_after_s` a call is sent to a second replica, if there is one, when the first has
    not answered after that time or cannot be reached. The first answer wins. Without it every
    call goes to one replica.

    >>> with Replicas({"ps:0": ["127.0.0.1:8500", "127.0.0.1:8501"]}) as replicas:
    ...     replicas.target("m:ps_0", 0, None), Replicas.current() is replicas
    (('ps:0', 'ps_0'), True)
    """

    def __init__(
        self,
        addresses: Mapping[str, Sequence[str]],
        *,
        tls: ClientTls | None = None,
        hedge_after_s: float | None = None,
    ) -> None:
        if hedge_after_s is not None and not hedge_after_s >= 0:
            raise InputError(f"hedge_after_s is {hedge_after_s!r}; it must be at least 0, or None.")
        self.hedge_after_s = hedge_after_s
        self._tls = tls
        self._lock = threading.Lock()
        self._lines = _Channels()
        self._named: bool | None = None
        self._random = random.Random()
        self.update(addresses)

    @property
    def named(self) -> bool:
        """Whether keys contain the name of a model, as in "model:ps_1" (API version 1)."""
        return bool(self._named)

    @staticmethod
    def current() -> Replicas | None:
        """Returns the Replicas whose `with` block is open in this process, on any thread."""
        found = process_state.find(_SHARED_NAME)
        return found if isinstance(found, Replicas) else None

    def update(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Replaces all addresses; calls in flight end at the address where they began."""
        known = {key: tuple(dict.fromkeys(found)) for key, found in addresses.items()}
        if self._named is None and known:
            # Set once: the style of keys does not change during the life of a process.
            self._named = any(":ps" in key for key in known)
        wanted = {address for found in known.values() for address in found}
        with self._lock:
            self._lines.known = known
            gone = [a for a, line in self._lines.open.items() if a not in wanted and not line.users]
            idle = [self._lines.open.pop(address).channel for address in gone]
        for channel in idle:
            channel.close()

    def target(self, model_name: str, task: int, old_model_name: str | None) -> tuple[str, str]:
        """Returns the key of a model's addresses, and the model's name at its servers."""
        if self._named:
            return model_name, model_name
        old = old_model_name or f"ps_{task}"
        return old.replace("_", ":", 1), old

    def choose(self, key: str, count: int = 1) -> list[str]:
        """Returns up to `count` random addresses of a key."""
        with self._lock:
            known = self._lines.known.get(key, ())
            return self._random.sample(known, min(count, len(known)))

    @contextmanager
    def channels(self, addresses: Sequence[str]) -> Iterator[list[Channel]]:
        """Opens the channels to some addresses; they stay open inside the `with` block."""
        with ExitStack() as stack:
            yield [stack.enter_context(self._channel(address)) for address in addresses]

    @contextmanager
    def _channel(self, address: str) -> Iterator[Channel]:
        with self._lock:
            line = self._lines.open.get(address)
            if line is None:
                line = self._lines.open[address] = _OpenChannel(Channel(address, self._tls))
            line.users += 1
        try:
            yield line.channel
        finally:
            with self._lock:
                line.users -= 1
                wanted = any(address in found for found in self._lines.known.values())
                ended = not line.users and not wanted
                if ended and self._lines.open.get(address) is line:
                    del self._lines.open[address]
            if ended:
                line.channel.close()

    def close(self) -> None:
        """Removes all addresses and closes every connection."""
        with self._lock:
            lines, self._lines = self._lines, _Channels()
        for line in lines.open.values():
            line.channel.close()

    def __enter__(self) -> Replicas:
        if Replicas.current() is not None:
            raise StateError("this process has current replicas already; call update() on them.")
        process_state.register(_SHARED_NAME, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        process_state.release(_SHARED_NAME, self)
        self.close()
