"""A port that a server may keep while it is away for a moment."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from ..core.errors import LaunchError

# Below the ports that Linux gives to outgoing connections (32768..60999): none of those, a client's
# own attempt to connect again included, can take the port of a server that is being restarted.
_FIRST_PORT, _LAST_PORT = 15000, 29999
_TRIES = 200


def free_port(host: str, avoid: Collection[int] = ()) -> int:
    """A port of this machine that nobody listens on, and none of `avoid`.

    >>> 15000 <= free_port("127.0.0.1") < 30000
    True
    """
    for _ in range(_TRIES):
        port = random.SystemRandom().randint(_FIRST_PORT, _LAST_PORT)
        if port not in avoid and _is_free(host, port):
            return port
    raise LaunchError(
        f"{_TRIES} ports of {host} between {_FIRST_PORT} and {_LAST_PORT} are all taken."
    )


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
