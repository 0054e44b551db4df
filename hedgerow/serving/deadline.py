"""How long the work at hand may still take, for calls that are made on its behalf."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_end: ContextVar[float | None] = ContextVar("deadline", default=None)  # by time.monotonic()


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """What is called inside has so many seconds, or fewer where less was left; None adds no limit.

    >>> with within(60), within(None):
    ...     shortest_s(3600) <= 60, shortest_s(1)
    (True, 1)
    """
    ends = [end for end in (_end.get(), None if seconds is None else _now() + seconds) if end]
    token = _end.set(min(ends, default=None))
    try:
        yield
    finally:
        _end.reset(token)


def shortest_s(timeout_s: float) -> float:
    """The given time, or what is left where that is less; never below 0."""
    end = _end.get()
    return timeout_s if end is None else max(0.0, min(timeout_s, end - _now()))


def _now() -> float:
    return time.monotonic()
