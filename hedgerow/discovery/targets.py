"""Addresses that something is sent to: a list that may change from one look to the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from ..core.errors import InputError


@runtime_checkable
class Targets(Protocol):
    """Who is there now. `current` is cheap, never waits, and many threads may call it."""

    def current(self) -> list[str]:
        """Addresses, each once: "host:port" or "[v6]:port"."""
        ...


class StaticTargets:
    """The same addresses always, in order and each once.

    >>> StaticTargets(["b:1", "a:1", "b:1"]).current()
    ['b:1', 'a:1']
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = tuple(dict.fromkeys(check_address(one) for one in addresses))

    def __repr__(self) -> str:
        return f"StaticTargets({list(self._addresses)})"

    def current(self) -> list[str]:
        """All of them."""
        return list(self._addresses)


def targets_of(to: Targets | str | Sequence[str]) -> Targets:
    """What a user gave as a list of addresses, or as one, or as an object that knows them.

    >>> targets_of("127.0.0.1:8500").current()
    ['127.0.0.1:8500']
    """
    if isinstance(to, str):
        return StaticTargets([to])
    return to if isinstance(to, Targets) else StaticTargets(to)


def check_address(address: object) -> str:
    """An address of a host and a port.

    >>> check_address("[::1]:8500")
    '[::1]:8500'
    """
    if isinstance(address, str):
        host, _, port = address.rpartition(":")
        if host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536:
            return address
    raise InputError(f"an address is {address!r}; write HOST:PORT, as in '127.0.0.1:8500'.")
