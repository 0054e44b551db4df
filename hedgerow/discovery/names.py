"""Names, addresses and numbers as they stand in ZooKeeper: what is allowed, how they are joined."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from ..core.errors import InputError

_NAME = re.compile(r"[-_0-9A-Za-z]+")
_CONTAINER = re.compile(r"[-_;.0-9A-Za-z]+")
SERVER_TYPES = ("ps", "entry", "dense")


def check_name(what: str, name: object) -> str:
    """A name that may be a part of a path.

    >>> check_name("bzid", "demo-1")
    'demo-1'
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InputError(
        f"{what} is {name!r}; it must match [-_0-9A-Za-z]+, because it is part of a path."
    )


def check_container_part(what: str, name: object) -> str:
    """A part of a container's name, in which clusters are written with semicolons.

    >>> check_container_part("ctx_cluster", "psm;hl;canary")
    'psm;hl;canary'
    """
    if isinstance(name, str) and _CONTAINER.fullmatch(name) and name not in (".", ".."):
        return name
    raise InputError(f"{what} is {name!r}; it must match [-_;.0-9A-Za-z]+, as in 'default'.")


def check_server_type(server_type: object) -> str:
    """One of the kinds of serving processes.

    >>> check_server_type("ps")
    'ps'
    """
    if isinstance(server_type, str) and server_type in SERVER_TYPES:
        return server_type
    raise InputError(f"server_type is {server_type!r}; it must be one of {SERVER_TYPES}.")


def sub_graph_number(name: str, server_type: str) -> int:
    """The number in a sub graph's name.

    >>> sub_graph_number("ps_12", "ps")
    12
    """
    kind, _, number = name.partition("_")
    if kind == server_type and number.isascii() and number.isdecimal():
        return int(number)
    raise InputError(f"{name!r} is no sub graph of a {server_type}; write {server_type}_<number>.")


def join_address(host: str, port: int) -> str:
    """HOST:PORT, with brackets around a host of IPv6.

    >>> join_address("localhost", 10), join_address("::1", 10)
    ('localhost:10', '[::1]:10')
    """
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host}:{port}"


def replica_id_of(environ: Mapping[str, str]) -> int:
    """The number of a replica: REPLICA_ID, or one made from the pod's name, or -1.

    >>> replica_id_of({"MY_POD_NAME": "pod-1"}), replica_id_of({"REPLICA_ID": "3"})
    (352048498, 3)
    >>> replica_id_of({})
    -1
    """
    given, pod = environ.get("REPLICA_ID", ""), environ.get("MY_POD_NAME", "")
    if given:
        try:
            return int(given)
        except ValueError:
            raise InputError(f"REPLICA_ID is {given!r}; it must be a whole number.") from None
    if not pod:
        return -1
    return int(hashlib.md5(pod.encode(), usedforsecurity=False).hexdigest()[10:20], 16)
