"""Named counts that many threads add to."""

from __future__ import annotations

from .forklock import ForkLock


class Counters:
    """Whole-number counters by name; owns a lock that survives forks.

    >>> counters = Counters()
    >>> counters.add("dropped", 2)
    >>> counters.add("dropped")
    >>> counters.snapshot()
    {'dropped': 3}
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._counts: dict[str, int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Adds to one counter; it starts at 0."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

    def read(self, name: str) -> int:
        """One counter's value."""
        with self._lock:
            return self._counts.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """All of them at one moment, by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))
