"""Waits for sockets and for a wake-up in one system call; a poll of the socket library takes many.

The descriptor of a socket only says that something changed, and only once: who waits must have seen
the socket's `EVENTS` first, and looks at them again afterwards.
"""

from __future__ import annotations

import select
from typing import Any


class Waiting:
    """Waits for any of some sockets and plain descriptors. Single-owner, as its sockets are."""

    def __init__(self, *sources: Any) -> None:
        import zmq

        self._events, self._in = int(zmq.EVENTS), int(zmq.POLLIN)
        self._poll = select.poll()
        for source in sources:
            known = isinstance(source, int)
            self._poll.register(source if known else source.getsockopt(zmq.FD), select.POLLIN)

    def watch(self, descriptor: int, what: int) -> None:
        """Waits for a plain descriptor, too, or for something else on it."""
        self._poll.register(descriptor, what)

    def forget(self, descriptor: int) -> None:
        """Waits for it no more, if it did."""
        try:
            self._poll.unregister(descriptor)
        except (KeyError, ValueError):  # it was closed, or never watched
            return

    def wait(self, pause_ms: int | None = None) -> list[tuple[int, int]]:
        """Descriptors on which something changed, each with what; none after so many ms."""
        return self._poll.poll(pause_ms)

    def has_input(self, socket: Any) -> bool:
        """Whether a socket has something to read."""
        return bool(socket.getsockopt(self._events) & self._in)
