"""Named counters and timers that many threads add to."""

from __future__ import annotations

from dataclasses import dataclass

from .process_state import ForkLock


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


Tags = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """All times of one thing together."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


_NONE = Timing()


class Timings:
    """Timers by name and tags; owns a lock that survives forks.

    >>> timings = Timings()
    >>> timings.add("embedding_lookup", 0.25, server="0")
    >>> timings.add("embedding_lookup", 0.5, server="0")
    >>> timings.read("embedding_lookup", server="0")
    Timing(count=2, total_s=0.75, longest_s=0.5)
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._timings: dict[tuple[str, Tags], Timing] = {}

    def add(self, name: str, seconds: float, **tags: str) -> None:
        """Adds one time to a timer; it starts at none."""
        key = name, tuple(sorted(tags.items()))
        with self._lock:
            so_far = self._timings.get(key, _NONE)
            longest_s = max(so_far.longest_s, seconds)
            self._timings[key] = Timing(so_far.count + 1, so_far.total_s + seconds, longest_s)

    def read(self, name: str, **tags: str) -> Timing:
        """One timer."""
        with self._lock:
            return self._timings.get((name, tuple(sorted(tags.items()))), Timing())

    def snapshot(self) -> dict[tuple[str, Tags], Timing]:
        """All of them at one moment."""
        with self._lock:
            return dict(sorted(self._timings.items()))
