"""Clocks that are passed as arguments. No other file reads the wall clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of the current time, in whole seconds since 1970."""

    def now_s(self) -> int:
        """Returns the current time."""
        ...


class SystemClock:
    """The machine's wall clock.

    >>> SystemClock().now_s() > 1_600_000_000
    True
    """

    def now_s(self) -> int:
        """Returns the current time."""
        return int(time.time())


def wall_ns() -> int:
    """Returns the wall clock in nanoseconds since 1970.

    It orders events of different processes on one machine.

    >>> wall_ns() > 1_600_000_000_000_000_000
    True
    """
    return time.time_ns()


class ManualClock:
    """A clock that changes only when it is set. For tests and replays.

    >>> clock = ManualClock(77)
    >>> clock.advance(3)
    >>> clock.now_s()
    80
    """

    def __init__(self, now_s: int = 0) -> None:
        self._now_s = now_s

    def now_s(self) -> int:
        """Returns the time the clock was last set to."""
        return self._now_s

    def set(self, now_s: int) -> None:
        """Sets the clock to `now_s`."""
        self._now_s = now_s

    def advance(self, seconds_s: int) -> None:
        """Moves the clock forward by `seconds_s`."""
        self._now_s += seconds_s
