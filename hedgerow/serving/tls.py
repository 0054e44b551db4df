"""The certificates of a server, and the addresses that require them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, FileMissingError


def is_local(address: str) -> bool:
    """Returns whether only this machine can reach an address.

    >>> is_local("127.0.0.1:0"), is_local("[::1]:80"), is_local("0.0.0.0:8500")
    (True, True, False)
    """
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposed(address: str, *, encrypted: bool, insecure: bool) -> None:
    """Raises if other machines can reach an address that has no TLS, unless `insecure`.

    >>> check_exposed("0.0.0.0:8500", encrypted=False, insecure=False)
    Traceback (most recent call last):
        ...
    hedgerow.core.errors.ConfigError: 0.0.0.0:8500 can be reached from other machines...
    """
    if not encrypted and not insecure and not is_local(address):
        raise ConfigError(
            f"{address} can be reached from other machines, and everything would travel in the "
            f"clear: pass --tls CERTIFICATE KEY (tls=), or say --insecure (insecure=True)."
        )


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the server's certificate chain and key, and `client_ca` to verify clients (mTLS).

    >>> Tls(Path("server.pem"), Path("server.key")).client_ca is None
    True
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> Any:
        """Returns grpcio's server credentials."""
        import grpc

        return grpc.ssl_server_credentials(
            [(_read("key", self.key), _read("certificate", self.certificate))],
            None if self.client_ca is None else _read("client_ca", self.client_ca),
            require_client_auth=self.client_ca is not None,
        )


def _read(what: str, path: Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileMissingError(
            f"Tls.{what} is {str(path)!r}, which cannot be read: {error}; name a PEM file."
        ) from error
