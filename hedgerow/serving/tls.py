"""Certificates of a server: encrypted connections, and clients that must show who they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FileMissingError


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the server's certificate chain and key; `client_ca` asks clients for theirs.

    >>> Tls(Path("server.pem"), Path("server.key")).client_ca is None
    True
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> Any:
        """As grpcio takes them."""
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
