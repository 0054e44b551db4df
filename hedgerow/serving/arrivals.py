"""Requests whose message is still on its way: slow clients keep no quick one out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from .model import ServingError


class Arrivals:
    """Waits for messages, `most` at a time: one more ends the wait of the oldest. Owns a lock.

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
        oldest = None
        with self._lock:
            if len(self._waiting) >= self._most:
                oldest = self._waiting.pop(next(iter(self._waiting)))
            self._waiting[id(context)] = context
        if oldest is not None:
            oldest.cancel()
        try:
            return next(messages)
        except StopIteration:
            raise ServingError("INVALID_ARGUMENT", "the call has no message; send one.") from None
        finally:
            with self._lock:
                self._waiting.pop(id(context), None)
