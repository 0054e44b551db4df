"""Time as an argument: the only file that reads the wall clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Whole seconds since 1970."""

    def now_s(self) -> int:
        """The time now."""
        ...


class SystemClock:
    """The machine's clock.

    >>> SystemClock().now_s() > 1_600_000_000
    True
    """

    def now_s(self) -> int:
        """The time now."""
        return int(time.time())


def wall_ns() -> int:
    """The machine's clock in nanoseconds since 1970: to order what starts in different processes.

    >>> wall_ns() > 1_600_000_000_000_000_000
    True
    """
    return time.time_ns()


class ManualClock:
    """A clock that stands still until it is set: for tests and replays.

    >>> clock = ManualClock(77)
    >>> clock.advance(3)
    >>> clock.now_s()
    80
    """

    def __init__(self, now_s: int = 0) -> None:
        self._now_s = now_s

    def now_s(self) -> int:
        """The time it was set to."""
        return self._now_s

    def set(self, now_s: int) -> None:
        """Moves it to `now_s`."""
        self._now_s = now_s

    def advance(self, seconds_s: int) -> None:
        """Moves it on."""
        self._now_s += seconds_s
