"""The way between processes of one machine: a local socket beside the TCP address.

A server on a loopback address listens under a name that follows from it, too. Like the address, the
name is known to the whole machine (its network namespace) and to nobody else, and it is gone with
the process. Requests and keys are the same; the system has less to do.
"""

from __future__ import annotations

import ipaddress
import socket
import sys


def nearby_name(address: str) -> str | None:
    """The local socket of a server at that address; None if there can be none.

    >>> nearby_name("tcp://127.0.0.1:7000")
    'ipc://@hedgerow-ps-127.0.0.1:7000'
    >>> nearby_name("tcp://10.0.0.1:7000") is None
    True
    """
    transport, _, place = address.partition("://")
    host = place.rpartition(":")[0].strip("[]")
    try:
        is_loopback = transport == "tcp" and ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        is_loopback = False
    return f"ipc://@hedgerow-ps-{place}" if is_loopback and sys.platform == "linux" else None


def nearest(address: str) -> str:
    """How to reach a server: by its local socket if one answers now, else by its address.

    >>> nearest("tcp://127.0.0.1:1")
    'tcp://127.0.0.1:1'
    """
    name = nearby_name(address)
    if name is None:
        return address
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect("\0" + name.removeprefix("ipc://@"))
        except OSError:  # nobody is there, or cannot take one more
            return address
    return name
