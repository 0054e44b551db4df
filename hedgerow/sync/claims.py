"""One replica under several addresses: which of them a publisher uses."""

from __future__ import annotations

import threading
import time

HOLD_S = 10.0  # an address that gave no sign of its replica for so long gives way to others


class Claims:
    """Whose replica it is, by the mark of what is loaded there. Owns a lock.

    >>> claims = Claims()
    >>> claims.claim("i1", "localhost:8500"), claims.claim("i1", "127.0.0.1:8500")
    ('localhost:8500', 'localhost:8500')
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, float]] = {}  # the address, and until when

    def claim(self, incarnation: str, address: str) -> str:
        """The address that has it: this one, if no other asked before and still does."""
        now_s = time.monotonic()
        with self._lock:
            self._held = {key: one for key, one in self._held.items() if one[1] > now_s}
            owner, _ = self._held.get(incarnation, (address, 0.0))
            if owner == address:
                self._held[incarnation] = (address, now_s + self._hold_s)
            return owner

    def give_up(self, address: str) -> None:
        """Nothing is sent to this address any more: another may have all that it had."""
        with self._lock:
            self._held = {key: one for key, one in self._held.items() if one[0] != address}
