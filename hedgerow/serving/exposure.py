"""Whether others can reach an address: a server there needs TLS, or to be told that it does not."""

from __future__ import annotations

import ipaddress

from ..core.errors import ConfigError


def is_local(address: str) -> bool:
    """Whether only this machine reaches an address.

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
    """Refuses to listen where others can reach without TLS.

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
