"""How long the operations of a transport took, by name."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_KEPT = 1000  # times of an operation; a job runs for days


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Times of one operation since the last report."""

    name: str
    mean_ms: float
    stdev_ms: float
    count: int


class OpTimers:
    """Collects times; not thread-safe.

    >>> timers = OpTimers()
    >>> with timers.timed("alltoall"):
    ...     pass
    >>> [(t.name, t.count) for t in timers.take()], timers.take()
    ([('alltoall', 1)], [])
    """

    def __init__(self) -> None:
        self._times_ms: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the time of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._times_ms[name].append(1000 * (time.perf_counter() - start))

    def take(self) -> list[OpTimes]:
        """All operations since the last call, by name."""
        taken, self._times_ms = self._times_ms, defaultdict(lambda: deque(maxlen=_KEPT))
        return [
            OpTimes(name, statistics.fmean(times), statistics.pstdev(times), len(times))
            for name, times in sorted(taken.items())
        ]
