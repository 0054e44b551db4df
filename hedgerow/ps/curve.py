"""CURVE keys: which clients may connect to a server, and how their traffic is encrypted."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, FileDamagedError, FileMissingError

SERVER_SECRET, SERVER_PUBLIC = "server.key", "server.pub"
CLIENT_SECRET, CLIENT_PUBLIC = "client.key", "client.pub"
_CLIENTS = "client*.pub"
_ZAP = "inproc://zeromq.zap.01"


def new_keys(folder: Path) -> list[Path]:
    """Creates a key pair for the servers and one for their clients. Secret keys get mode 600.

    Servers need server.key and every client*.pub. Clients need client.key, client.pub and
    server.pub. To give further clients their own keys, add their public keys as client-NAME.pub.
    """
    import zmq

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = []
    for secret_name, public_name in (
        (SERVER_SECRET, SERVER_PUBLIC),
        (CLIENT_SECRET, CLIENT_PUBLIC),
    ):
        public, secret = zmq.curve_keypair()
        made.append(_write(folder / secret_name, secret, 0o600))
        made.append(_write(folder / public_name, public, 0o644))
    return made


def _write(path: Path, key: bytes, mode: int) -> Path:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError as error:
        raise ConfigError(
            f"{path} exists already; keys are never replaced. Use another folder."
        ) from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(key + b"\n")
    return path


def _read(path: Path, *, secret: bool = False) -> bytes:
    try:
        key = path.read_bytes().strip()
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise FileMissingError(
            f"{path} cannot be read ({error.strerror}); make keys with `hedgerow keys new`."
        ) from error
    if len(key) != 40:
        raise FileDamagedError(f"{path} holds no key: 40 characters in Z85, not {len(key)}.")
    if secret and mode & 0o077:
        raise ConfigError(
            f"{path} has mode {mode:o}, so others can read the secret key; chmod 600 {path}."
        )
    return key


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The secret key of a server, and the public keys of its clients."""

    secret: bytes = field(repr=False)
    clients: frozenset[bytes]

    @staticmethod
    def read(folder: Path) -> ServerKeys:
        """Reads a folder that `new_keys` made."""
        clients = frozenset(_read(path) for path in sorted(folder.glob(_CLIENTS)))
        if not clients:
            raise FileMissingError(f"{folder} has no {_CLIENTS}, so no client could connect.")
        return ServerKeys(_read(folder / SERVER_SECRET, secret=True), clients)

    def protect(self, socket: Any) -> None:
        """Makes a socket accept only CURVE. Must be called before `bind`."""
        import zmq

        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)

    def guard(self, context: Any) -> Guard:
        """Returns the object that decides about every new connection of a context."""
        return Guard(context, self.clients)


class Guard:
    """Decides whether a client may connect, through ZeroMQ's ZAP protocol (RFC 27)."""

    def __init__(self, context: Any, clients: frozenset[bytes]) -> None:
        import zmq

        self._clients = clients
        self.refused = 0
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP)

    def answer(self) -> None:
        """Answers one request of ZeroMQ, which has arrived."""
        import zmq
        from zmq.utils import z85

        asked = self.socket.recv_multipart()
        version, number = asked[0], asked[1]
        mechanism = asked[5] if len(asked) > 6 else b""
        known = mechanism == b"CURVE" and z85.encode(asked[6]) in self._clients
        status, text = (b"200", b"OK") if known else (b"400", b"unknown key")
        self.refused += not known
        self.socket.send_multipart([version, number, status, text, b"", b""], zmq.NOBLOCK)


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """The key pair of a client, and the public key of its server."""

    secret: bytes = field(repr=False)
    public: bytes
    server: bytes

    @staticmethod
    def read(folder: Path | str) -> ClientKeys:
        """Reads a folder that `new_keys` made. The server's secret key need not be in it."""
        folder = Path(folder)
        return ClientKeys(
            _read(folder / CLIENT_SECRET, secret=True),
            _read(folder / CLIENT_PUBLIC),
            _read(folder / SERVER_PUBLIC),
        )

    def protect(self, socket: Any) -> None:
        """Makes a socket use CURVE. Must be called before `connect`."""
        import zmq

        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server)


def needs_keys(listen: str, keys: ServerKeys | None, insecure: bool) -> None:
    """Raises `ConfigError` if a server without keys would be reachable from other machines.

    >>> needs_keys("tcp://127.0.0.1:0", None, False)
    >>> needs_keys("tcp://0.0.0.0:7000", None, False)
    Traceback (most recent call last):
        ...
    hedgerow.core.errors.ConfigError: tcp://0.0.0.0:7000 can be reached from other machines...
    """
    if keys is None and not insecure and not _is_local(listen):
        raise ConfigError(
            f"{listen} can be reached from other machines, and no keys are given: anybody could "
            f"read and change rows. Make keys with `hedgerow keys new DIR` and pass --keys DIR, "
            f"or say --insecure."
        )


def _is_local(listen: str) -> bool:
    transport, _, rest = listen.partition("://")
    if transport in ("ipc", "inproc"):
        return True
    host = rest.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
