"""The way between processes of one machine and one user: a local socket beside the TCP address.

A server on a loopback address that wants no keys listens under a name that follows from it, too.
Like the address, the name is known to the machine (its network namespace) and to nobody else, and
it is gone with the process. The socket keeps the borders of packets and passes memory, so each side
reads and writes it by itself: no thread stands in between, and large rows do not travel.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys

from ..core.errors import ConfigError
from .packets import PACKET_BYTES

_SOCKET_BYTES = 2**22
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_WAITING = 128  # clients that were not let in yet


def nearby_name(address: str) -> str | None:
    """The local socket of a server at that address; None if there can be none.

    >>> nearby_name("tcp://127.0.0.1:7000")
    'hedgerow-ps-127.0.0.1:7000'
    >>> nearby_name("tcp://10.0.0.1:7000") is None
    True
    """
    transport, _, place = address.partition("://")
    host = place.rpartition(":")[0].strip("[]")
    try:
        is_loopback = transport == "tcp" and ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        is_loopback = False
    return f"hedgerow-ps-{place}" if is_loopback and sys.platform == "linux" else None


def listen_nearby(address: str) -> socket.socket | None:
    """The local socket of this server at that address."""
    name = nearby_name(address)
    if name is None:
        return None
    made = _socket()
    try:
        made.bind("\0" + name)
    except OSError as error:  # as bad as a taken port: clients would ask whoever has it
        made.close()
        raise ConfigError(
            f"cannot listen at {name}, the local socket of {address}: {error.strerror}. Choose a "
            f"port that nobody uses."
        ) from error
    made.listen(_WAITING)
    return made


def connect_nearby(address: str) -> socket.socket | None:
    """A connection to a server of this machine and user; None where there is none.

    >>> connect_nearby("tcp://127.0.0.1:1") is None
    True
    """
    name = nearby_name(address)
    if name is None:
        return None
    made = _socket()
    try:
        made.connect("\0" + name)
        fits = is_of_this_user(made) and takes_packets(made)
    except OSError:  # nobody is there, or cannot take one more
        fits = False
    if fits:
        return made
    made.close()
    return None


def is_of_this_user(connected: socket.socket) -> bool:
    """Whether the other side may read and write memory of ours: it could trace us as well."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(told)[1] == os.geteuid()


def takes_packets(connected: socket.socket) -> bool:
    """Makes room for packets; whether the system allows enough."""
    connected.setblocking(False)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
    return connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 2 * PACKET_BYTES


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made
