"""Named counters and timers that many threads update."""

from __future__ import annotations

from dataclasses import dataclass

from .process_state import ForkLock


class Counters:
    """Integer counters by name. Owns a lock that stays usable after a fork.

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
        """Adds `amount` to a counter. A new counter starts at 0."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

    def read(self, name: str) -> int:
        """Returns the value of a counter, 0 if it was never added to."""
        with self._lock:
            return self._counts.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """Returns all counters by name, as of one moment."""
        with self._lock:
            return dict(sorted(self._counts.items()))


Tags = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Count, sum and maximum of the durations that one timer recorded."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


_NONE = Timing()


class Timings:
    """Timers by name and tags. Owns a lock that stays usable after a fork.

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
        """Records one duration in a timer."""
        key = name, tuple(sorted(tags.items()))
        with self._lock:
            so_far = self._timings.get(key, _NONE)
            longest_s = max(so_far.longest_s, seconds)
            self._timings[key] = Timing(so_far.count + 1, so_far.total_s + seconds, longest_s)

    def read(self, name: str, **tags: str) -> Timing:
        """Returns the `Timing` of a timer. It is all zeros if nothing was recorded."""
        with self._lock:
            return self._timings.get((name, tuple(sorted(tags.items()))), Timing())

    def snapshot(self) -> dict[tuple[str, Tags], Timing]:
        """Returns all timers by name and tags, as of one moment."""
        with self._lock:
            return dict(sorted(self._timings.items()))
