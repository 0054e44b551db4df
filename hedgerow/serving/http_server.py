"""An HTTP server with limits on memory and threads, whatever its clients send."""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from ..core.errors import InputError
from .tls import is_local

if TYPE_CHECKING:
    from .tls import Tls


@dataclass(frozen=True, slots=True)
class OriginCheck:
    """Checks the Host and Origin headers of a request.

    A page of another site can make a browser send requests to this server. The browser then sends
    the site as Origin. With DNS rebinding the origins match, but Host has the name of the site.

    >>> check = OriginCheck.of("127.0.0.1:8501", ())
    >>> check.refusal("localhost:8501", None)
    ''
    >>> check.refusal("evil.example", None)
    "the Host 'evil.example' is not a name of this server; allow it with --allow-host NAME."
    """

    names: frozenset[str]
    any_ip: bool

    @staticmethod
    def of(address: str, hosts: Collection[str]) -> OriginCheck:
        """Returns the check of a server at `address`, with `hosts` as further names of it.

        The server also has its address and the machine's names. A server that other machines
        reach accepts every IP address as Host, since no site has an IP address as its name.
        """
        own = {"localhost", _name(address), *(host.lower() for host in hosts)}
        local = is_local(address)
        if not local:
            own |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return OriginCheck(frozenset(own), not local)

    def refusal(self, host: str, origin: str | None) -> str:
        """Returns why a request is refused; empty if it is accepted."""
        if host and not self._is_own(_name(host)):
            shown = host[:100]
            return (
                f"the Host {shown!r} is not a name of this server; allow it with --allow-host NAME."
            )
        if origin is None:
            return ""
        try:
            same = urlsplit(origin).netloc.lower() == host.lower() != ""
        except ValueError:
            same = False
        return "" if same else f"requests from pages of {origin[:100]!r} are refused."

    def _is_own(self, name: str) -> bool:
        if name in self.names or "*" in self.names:
            return True
        try:
            found = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_ip or found.is_loopback


def _name(host: str) -> str:
    """Returns a host in lower case, without its port."""
    text = host.strip().lower()
    if text.startswith("["):
        inner, _, rest = text[1:].partition("]")
        return inner if not rest or (rest[0] == ":" and rest[1:].isdecimal()) else text
    name, colon, port = text.rpartition(":")
    return (name if colon and port.isdecimal() else text).removesuffix(".")


_PIECE_BYTES = 1 << 16
HEAD_BYTES = 1 << 16  # limit of the request line and headers; http.server's own limit is 6.5 MB


class RequestReader:
    """Replaces the file that http.server reads from. Belongs to one thread.

    A request's head may take `head_s` seconds from its first byte, however slowly bytes arrive.
    At other times the connection may be silent for `idle_s`.
    """

    def __init__(self, connection: socket.socket, head_s: float, idle_s: float) -> None:
        self._connection, self._head_s, self._idle_s = connection, head_s, idle_s
        self._buffer = bytearray()
        self.begin()

    def begin(self) -> None:
        """Prepares for the first line of a request."""
        self._left = HEAD_BYTES + 1
        self._end_s: float | None = None
        self.unclear = False  # whether a line has a byte that other readers may take as a line end

    def readline(self, limit: int = HEAD_BYTES + 1) -> bytes:
        """Returns a line of a head; truncated if too long, empty if the client has disconnected."""
        if self._left <= 0:
            raise HTTPException(f"more than {HEAD_BYTES} bytes before the body")
        most = min(limit, self._left)
        seen = 0
        while (end := self._buffer.find(b"\n", seen, most)) < 0 and len(self._buffer) < most:
            seen = len(self._buffer)
            if not self._receive():
                break
        line = self._take(end + 1 if end >= 0 else most)
        self._left -= len(line)
        inner = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        self.unclear = self.unclear or b"\r" in inner or b"\0" in inner
        return line

    def read1(self, most: int) -> bytes:
        """Returns some bytes of a body; empty if the client has disconnected."""
        self._left, self._end_s = 0, None
        if not self._buffer:
            self._receive()
        return self._take(most)

    def close(self) -> None:
        """Drops the bytes that were received but not read."""
        self._buffer.clear()

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        if taken and self._left > 0 and self._end_s is None:
            self._end_s = time.monotonic() + self._head_s
        return taken

    def _receive(self) -> bool:
        """Receives bytes; returns whether there were any."""
        if self._buffer and self._left > 0 and self._end_s is None:
            self._end_s = time.monotonic() + self._head_s
        left_s = self._idle_s
        if self._end_s is not None:
            left_s = min(left_s, self._end_s - time.monotonic())
        if left_s <= 0:
            raise TimeoutError(f"the head of a request took more than {self._head_s} s")
        self._connection.settimeout(left_s)
        try:
            piece = self._connection.recv(_PIECE_BYTES)
        finally:
            self._connection.settimeout(self._idle_s)
        self._buffer += piece
        return bool(piece)


_CHUNK_BYTES = 1 << 16
_SOCKETS = ("unix:", "unix-abstract:")  # addresses of gRPC; HTTP would take them as host names


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits on clients, each and all together."""

    body_bytes: int = 32 << 20
    all_bodies_bytes: int = 128 << 20  # parsing JSON needs many times its length in memory
    connections: int = 256
    idle_s: float = 30.0  # without a byte
    head_s: float = 10.0  # for a whole head
    body_s: float = 60.0  # for a whole body


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer: its status, its body and the type of the body."""

    status: int
    body: bytes
    kind: str = "application/json"


DEFAULT_LIMITS = HttpLimits()
Respond = Callable[[str, str, bytes], HttpAnswer]
"""Returns the answer to a request's method, path and body. Many threads call it."""


class HttpServer:
    """Answers requests by `respond` at `address`. Owns a lock.

    `hosts` are further host names of the server; OriginCheck.of() has the others.
    """

    def __init__(
        self,
        respond: Respond,
        address: str = "127.0.0.1:0",
        *,
        tls: Tls | None = None,
        limits: HttpLimits = DEFAULT_LIMITS,
        hosts: Collection[str] = (),
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or address.startswith(_SOCKETS):
            raise InputError(f"address is {address!r}; give HOST:PORT, or port 0 for a free one.")
        context = None if tls is None else _context(tls)
        try:
            check = OriginCheck.of(address, hosts)
            self._server = _Server(host.strip("[]"), int(port), respond, context, limits, check)
        except (OSError, OverflowError) as error:
            raise InputError(f"address {address!r} cannot be listened on: {error}.") from error
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> Self:
        """Starts to answer requests."""
        self._thread.start()
        return self

    def stop(self, grace_s: float = 5.0) -> None:
        """Stops accepting, waits for requests in flight, then closes all connections."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.finish(grace_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is a subclass
        raise InputError(f"{tls} cannot be used: {error}; name PEM files that fit.") from error
    return context


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        respond: Respond,
        context: ssl.SSLContext | None,
        limits: HttpLimits,
        check: OriginCheck,
    ) -> None:
        self.respond, self.limits, self.check, self._context = respond, limits, check, context
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._lock = threading.Condition()
        self._open: set[socket.socket] = set()
        self._waiting: dict[socket.socket, None] = {}  # connections without a request, in order
        self._busy, self._body_bytes = 0, 0
        self.draining = False
        super().__init__((host, port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Returns a connection; its own thread makes the TLS handshake later."""
        connection, peer = super().get_request()
        connection.settimeout(self.limits.idle_s)
        if self._context is not None:
            connection = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, peer

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Returns whether one more connection is accepted; http.server closes a refused one.

        At the limit, the connection that has waited longest for a whole request is ended instead.
        So slow clients, however many, do not keep out fast ones.
        """
        with self._lock:
            if len(self._open) >= self.limits.connections:
                if not self._waiting:
                    return False
                self._end_waiting(next(iter(self._waiting)))
            self._open.add(request)
            self._waiting[request] = None
            return True

    def _end_waiting(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        self._open.discard(connection)
        with suppress(OSError):  # the client may have closed it
            # Not by the TLS socket's methods: its state belongs to the reading thread.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def has_request(self, connection: socket.socket) -> None:
        """Marks a connection as having a whole request, so that it stays until the answer."""
        with self._lock:
            self._waiting.pop(connection, None)

    def waits(self, connection: socket.socket) -> None:
        """Marks a connection as waiting for its next request."""
        with self._lock:
            if connection in self._open:
                self._waiting[connection] = None

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        with self._lock:
            self._open.discard(request)
            self._waiting.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs an error of a connection; it affects no other connection."""
        logging.getLogger("hedgerow").debug(
            "a connection of %s ended", client_address, exc_info=True
        )

    def begin(self, length: int) -> bool:
        """Returns whether a request's body fits into the memory limit, and counts it if so."""
        with self._lock:
            if self._body_bytes + length > self.limits.all_bodies_bytes:
                return False
            self._busy += 1
            self._body_bytes += length
            return True

    def end(self, length: int) -> None:
        """Removes a request from the counts."""
        with self._lock:
            self._busy -= 1
            self._body_bytes -= length
            self._lock.notify_all()

    def finish(self, grace_s: float) -> None:
        """Waits for requests in flight, then closes every connection."""
        self.draining = True
        with self._lock:
            self._lock.wait_for(lambda: not self._busy, grace_s)
            left = list(self._open)
        for connection in left:
            self.shutdown_request(connection)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hedgerow", ""
    default_request_version = "HTTP/1.1"  # so that an answer to a malformed request has headers
    server: _Server  # type: ignore[assignment]

    def setup(self) -> None:
        """Replaces http.server's file by a RequestReader."""
        super().setup()
        limits = self.server.limits
        self.rfile = RequestReader(self.connection, limits.head_s, limits.idle_s)  # type: ignore

    def handle_one_request(self) -> None:
        """Handles one request, then marks the connection as waiting for the next."""
        self.rfile.begin()  # type: ignore[attr-defined]
        super().handle_one_request()
        self.server.waits(self.connection)

    def do_GET(self) -> None:
        """Answers a request without a body."""
        stated = self.headers.get_all("Content-Length") or ["0"]
        if stated != ["0"] or "Transfer-Encoding" in self.headers:
            # Else the body would be read as a second request, which a proxy has not checked.
            self._refuse(400, "a GET has no body; send none.")
        elif self._is_clear():
            self._answer(0)

    def do_POST(self) -> None:
        """Answers a request with a body of a stated length."""
        if not self._is_clear():
            return
        text = self.headers.get("Content-Length", "")
        if not text.isascii() or not text.isdecimal() or "Transfer-Encoding" in self.headers:
            self._refuse(411, "send the body with a Content-Length.")
            return
        most = self.server.limits.body_bytes
        if len(text) > 18 or int(text) > most:
            self._refuse(413, f"the body has {text[:18]} bytes; at most {most}.")
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(415, "the body must be JSON; send it with Content-Type: application/json.")
            return
        self._answer(int(text))

    def _is_clear(self) -> bool:
        """Returns whether the headers have one meaning for every reader, and are for this server.

        Sends an error otherwise.
        """
        lengths = self.headers.get_all("Content-Length") or []
        broken = bool(self.headers.defects) or self.rfile.unclear  # type: ignore[attr-defined]
        if broken or len(lengths) > 1:
            self._refuse(400, "the headers are unclear; send each once, as `Name: value`.")
            return False
        hosts, origins = (self.headers.get_all(name) or [] for name in ("Host", "Origin"))
        if len(hosts) > 1 or len(origins) > 1 or (not hosts and self.request_version > "HTTP/1.0"):
            self._refuse(400, "send one Host header, and at most one Origin.")
            return False
        try:  # an absolute URI in the request line takes precedence over Host (RFC 9112)
            host = urlsplit(self.path).netloc or "".join(hosts)
        except ValueError as error:  # http://[
            self._refuse(400, f"Malformed request: {self.path[:100]}: {error}")
            return False
        reason = self.server.check.refusal(host, origins[0] if origins else None)
        if reason:
            self._refuse(403, reason)
        return not reason

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Sends http.server's own errors in the form of all other errors."""
        self._refuse(int(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs to the logger, not to standard error."""
        logging.getLogger("hedgerow").debug(format, *args)

    def _answer(self, length: int) -> None:
        if not self.server.begin(length):
            self._refuse(429, "too many large requests at once; try again later.")
            return
        try:
            body = self._body(length)
            if body is None:
                self._refuse(408, "the body came too slowly.")
                return
            self.server.has_request(self.connection)
            self._send(self.server.respond(self.command, self.path, body))
        finally:
            self.server.end(length)

    def _body(self, length: int) -> bytes | None:
        """Returns the whole body, or None if it does not arrive in time."""
        end_s = time.monotonic() + self.server.limits.body_s
        parts, left = [], length
        while left:
            part = self.rfile.read1(min(left, _CHUNK_BYTES))  # type: ignore[attr-defined]
            if not part:
                raise ConnectionError("the client went away inside its body")
            parts.append(part)
            left -= len(part)
            if left and time.monotonic() > end_s:
                return None
        return b"".join(parts)

    def _refuse(self, status: int, text: str) -> None:
        """Sends an error and closes the connection, since the body may still be arriving."""
        self.close_connection = True
        self._send(HttpAnswer(status, json.dumps({"error": text}).encode()))

    def _send(self, answer: HttpAnswer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection or self.server.draining:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
