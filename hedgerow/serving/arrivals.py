"""What requests take while they arrive and are answered: places to wait in, and bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .model import ServingError


class Arrivals:
    """Places for calls that wait, `most` at a time: one more ends the oldest. Owns a lock.

    A client that opens calls and sends nothing holds a thread and a place for each. Good clients
    send their message with the call, and so never wait long enough to be the oldest.

    >>> Arrivals(4).take(iter([b"message"]), None)
    b'message'
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[int, Any] = {}  # contexts, by their identity; the oldest first

    def take(self, messages: Iterator[bytes], context: Any) -> bytes:
        """The one message of a call."""
        self._begin(context)
        try:
            return next(messages)
        except StopIteration:
            raise ServingError("INVALID_ARGUMENT", "the call has no message; send one.") from None
        finally:
            self._end(context)

    def each(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """All messages of a call, which waits for each.

        >>> list(Arrivals(4).each(iter([b"one", b"two"]), None))
        [b'one', b'two']
        """
        while True:
            with self.waiting(context):
                data = next(messages, None)
            if data is None:
                return
            yield data

    @contextmanager
    def waiting(self, context: Any) -> Iterator[None]:
        """The call waits while this is open."""
        self._begin(context)
        try:
            yield
        finally:
            self._end(context)

    def _begin(self, context: Any) -> None:
        oldest = None
        with self._lock:
            if len(self._waiting) >= self._most:
                oldest = self._waiting.pop(next(iter(self._waiting)))
            self._waiting[id(context)] = context
        if oldest is not None:
            oldest.cancel()

    def _end(self, context: Any) -> None:
        with self._lock:
            self._waiting.pop(id(context), None)


class InFlight:
    """Bytes of the requests that are being answered, `most` at a time. Owns a lock.

    What is read of a request takes several times its bytes, so that all large ones together would
    fill the memory. A small one counts for nothing.

    >>> bytes_now = InFlight(1 << 20)
    >>> held = bytes_now.take(1 << 19)
    >>> bytes_now.give_back(held)
    """

    SMALL_BYTES = 128 << 10

    def __init__(self, most: int) -> None:
        self._most, self._now = most, 0
        self._lock = threading.Lock()

    def take(self, size: int) -> int:
        """What must be given back. A request that does not fit now is refused, never one alone."""
        if size <= self.SMALL_BYTES:
            return 0
        with self._lock:
            if self._now and self._now + size > self._most:
                raise ServingError(
                    "RESOURCE_EXHAUSTED",
                    f"requests of {self._now} bytes are being answered, and this one has {size} "
                    f"more; at most {self._most} at a time: ask again later, or for less at once.",
                )
            self._now += size
        return size

    def give_back(self, size: int) -> None:
        """Ends what take() began."""
        if size:
            with self._lock:
                self._now -= size
