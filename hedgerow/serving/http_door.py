"""Which requests a web page of somebody else made: those are refused."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from .exposure import is_local


@dataclass(frozen=True, slots=True)
class Door:
    """Looks at the Host and the Origin of a request.

    A page of another site can make a browser send requests to this server. It says so in Origin,
    unless its own name was made to lead here (DNS rebinding): then Host has that name.

    >>> door = Door.of("127.0.0.1:8501", ())
    >>> door.refusal("localhost:8501", None)
    ''
    >>> door.refusal("evil.example", None)
    "the Host 'evil.example' is none of this server's; allow it with --allow-host NAME."
    """

    names: frozenset[str]
    any_ip: bool

    @staticmethod
    def of(address: str, hosts: Collection[str]) -> Door:
        """For a server at an address: it is known by that, by the machine's names and by `hosts`.

        A server that others reach takes every IP address, which no site has as its name.
        """
        own = {"localhost", _name(address), *(host.lower() for host in hosts)}
        local = is_local(address)
        if not local:
            own |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return Door(frozenset(own), not local)

    def refusal(self, host: str, origin: str | None) -> str:
        """Why a request is refused; empty if it is not."""
        if host and not self._is_own(_name(host)):
            shown = host[:100]
            return f"the Host {shown!r} is none of this server's; allow it with --allow-host NAME."
        if origin is None:
            return ""
        try:
            same = urlsplit(origin).netloc.lower() == host.lower() != ""
        except ValueError:
            same = False
        return "" if same else f"requests of pages of {origin[:100]!r} are refused."

    def _is_own(self, name: str) -> bool:
        if name in self.names or "*" in self.names:
            return True
        try:
            found = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_ip or found.is_loopback


def _name(host: str) -> str:
    """A host without its port, as it is compared."""
    text = host.strip().lower()
    if text.startswith("["):
        inner, _, rest = text[1:].partition("]")
        return inner if not rest or (rest[0] == ":" and rest[1:].isdecimal()) else text
    name, colon, port = text.rpartition(":")
    return (name if colon and port.isdecimal() else text).removesuffix(".")
