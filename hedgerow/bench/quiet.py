"""Measures while nobody else works on the cores of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
_DISTURBED = 1.25  # times the best: half the speed is usual, so that nothing is near this
_TRIES = 4  # for each measurement that is wanted
_PAUSE_S = 0.02  # others stay for tenths of a second, or for seconds


class Yardstick:
    """A small piece of Python that always takes the same time, unless others use the core.

    On a virtual machine that shares its cores a step that is bound by launches takes twice as long
    for seconds at a time; so does this.
    """

    def __init__(self, seconds: float = 0.0, patience_s: float = 60.0) -> None:
        """So many seconds it looks how a quiet moment looks, so many in all may be lost later."""
        end = time.perf_counter() + seconds
        self.patience_s = patience_s
        self._best = min(_once() for _ in range(20))
        while time.perf_counter() < end:
            time.sleep(_PAUSE_S)
            self._best = min(self._best, _once())

    def is_quiet(self) -> bool:
        """Whether the core has its own speed now."""
        now = min(_once() for _ in range(3))
        self._best = min(self._best, now)
        return now <= _DISTURBED * self._best


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """Measurements, and whether they were taken while it was quiet."""

    values: list[T]
    quiet: bool


def measured(
    measure: Callable[[], T], count: int, yardstick: Yardstick, *, tries: int = _TRIES
) -> Measured[T]:
    """So many measurements before and after which it was quiet; fewer where that is seldom so.

    Where it is never so, in `tries` times as many or until the patience ends, others are all there
    is.

    >>> set(measured(lambda: 1.0, 2, Yardstick()).values)
    {1.0}
    """
    good: list[T] = []
    others: list[T] = []
    for _ in range(tries * count):
        begun = time.perf_counter()
        before = yardstick.is_quiet()
        value = measure()
        if before and yardstick.is_quiet():
            good.append(value)
        else:
            others.append(value)
            time.sleep(_PAUSE_S)
            yardstick.patience_s -= time.perf_counter() - begun
        if len(good) == count or (yardstick.patience_s < 0 and len(good) + len(others) >= count):
            break
    return Measured(good or others[:count], bool(good))


def _once() -> float:
    begun = time.perf_counter()
    total, kept = 0, {}
    for number in range(3000):
        total += number
        kept[number & 63] = total
    return time.perf_counter() - begun
