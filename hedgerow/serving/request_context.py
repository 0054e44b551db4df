"""The context of the current request: its deadline, and the push that it belongs to."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextvars import ContextVar, Token
from types import TracebackType

from ..sync.protocol import PushMark

_end: ContextVar[float | None] = ContextVar("deadline", default=None)  # by time.monotonic()


class within:  # noqa: N801  (it reads as a word of a with statement)
    """Limits the calls inside to `seconds`, if no outer limit ends earlier; None adds no limit.

    >>> with within(60), within(None):
    ...     shortest_s(3600) <= 60, shortest_s(1)
    (True, 1)
    """

    __slots__ = ("_seconds", "_token")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._token: Token[float | None] | None = None

    def __enter__(self) -> None:
        before, end = _end.get(), None if self._seconds is None else _now() + self._seconds
        if before is not None:
            end = before if end is None else min(before, end)
        self._token = _end.set(end)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._token is not None
        _end.reset(self._token)


def shortest_s(timeout_s: float) -> float:
    """Returns `timeout_s`, or the time left until the deadline if that is less; at least 0."""
    end = _end.get()
    return timeout_s if end is None else max(0.0, min(timeout_s, end - _now()))


def _now() -> float:
    return time.monotonic()


_mark: ContextVar[PushMark | None] = ContextVar("push", default=None)


class marked:  # noqa: N801  (it reads as a word of a with statement)
    """Sets the push mark in a call's metadata as the current one, if there is one.

    >>> with marked(PushMark("s1", 7, 0, "p1").metadata()):
    ...     current_push().seq
    7
    >>> current_push() is None
    True
    """

    __slots__ = ("_found", "_token")

    def __init__(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._found = PushMark.read(metadata)
        self._token: Token[PushMark | None] | None = None

    def __enter__(self) -> None:
        if self._found is not None:
            self._token = _mark.set(self._found)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._token is not None:
            _mark.reset(self._token)


def current_push() -> PushMark | None:
    """Returns the mark of the current push, or None in any other call."""
    return _mark.get()
