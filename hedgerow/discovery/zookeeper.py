"""kazoo, if it is installed (extra `zookeeper`): the only file that imports it."""

from __future__ import annotations

from typing import Any

from ..core.errors import MissingExtraError

SESSION_S = 10.0
CONNECTED, LOST = "CONNECTED", "LOST"  # kazoo's words for the states of a client


def kazoo_library() -> Any:
    """The module `kazoo.client`; an error that names the extra where it is missing."""
    try:
        import kazoo.client
    except ImportError as error:
        raise MissingExtraError(
            f"ZooKeeper needs kazoo ({error}); pip install hedgerow[zookeeper]."
        ) from error
    return kazoo.client


def kazoo_errors() -> Any:
    """The module of kazoo's exceptions."""
    kazoo_library()
    import kazoo.exceptions

    return kazoo.exceptions


def kazoo_failures() -> tuple[type[Exception], ...]:
    """What a request raises that did not go through."""
    errors = kazoo_errors()
    from kazoo.handlers.threading import KazooTimeoutError

    return errors.KazooException, KazooTimeoutError


def new_client(hosts: str, session_s: float = SESSION_S) -> Any:
    """A client of the servers "host:port,host:port" that reconnects for ever."""
    for_ever = {"max_tries": -1, "delay": 0.05, "max_delay": 2.0}
    return kazoo_library().KazooClient(hosts, timeout=session_s, connection_retry=for_ever)
