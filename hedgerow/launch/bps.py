"""Starts BytePS: its environment, the folder of its sockets, then the library itself."""

from __future__ import annotations

import logging
import socket
import struct
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path

from ..core.errors import LaunchError
from . import env
from .bps_env import bps_env
from .flags import is_reference
from .transports import TorchTransport, byteps, if_installed

_log = logging.getLogger(__name__)
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
# How BytePS uses GPUs and network cards: what one looks for when a job hangs at its start.
_LOGGED = ("BYTEPS_PIN_MEMORY", "BYTEPS_USE_GDR", "CUDA_", "DMLC_N", "PSLITE_UCX_", "UCX_")


def interface_address(name: str) -> str:
    """The first IPv4 address of a network interface, empty text if it has none.

    >>> interface_address("lo"), interface_address("no such card")
    ('127.0.0.1', '')
    """
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(asking.fileno(), _GET_ADDRESS, request)[20:24])
        except OSError as error:
            _log.info("interface %s has no IPv4 address: %s", name, error)
            return ""


def _address_or_host(name: str, address_of: Callable[[str], str]) -> str:
    address = address_of(name)
    if address:
        return address
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise LaunchError(
            f"interface {name!r} has no IPv4 address and neither has this machine's name "
            f"({error}); set DMLC_INTERFACE to an interface that has one."
        ) from error
    _log.warning("interface %s has no IPv4 address: %s of the host name is taken", name, found)
    return found


def bps_init(
    uuid: str,
    *,
    transport: str = "auto",
    environ: MutableMapping[str, str] | None = None,
    address_of: Callable[[str], str] = interface_address,
) -> None:
    """Sets the environment of BytePS for job `uuid` and starts it; torch.distributed without it.

    The original's way (`transport="reference"`) sets variables one by one, so that an error leaves
    some behind; else an error leaves the environment as it was.
    """
    environ = env.current() if environ is None else environ
    reference = is_reference(transport)
    chosen = byteps() if reference else if_installed("byteps")
    if chosen is None:
        _log.warning("BytePS is not installed: torch.distributed is started instead")
        TorchTransport().init()
        return

    def address(name: str) -> str:
        return address_of(name) if reference else _address_or_host(name, address_of)

    temporary = Path(tempfile.gettempdir())
    pairs = bps_env(uuid, dict(environ), address, temporary, reference=reference)
    for name, value in pairs if reference else list(pairs):
        environ[name] = value
        if name.startswith(_LOGGED):
            _log.info("BytePS: %s=%s", name, value)
        if name == "BYTEPS_SOCKET_PATH":
            Path(value).mkdir(parents=True, exist_ok=True)
    chosen.module.init(lazy=False)
