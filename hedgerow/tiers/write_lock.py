"""A lock for whoever writes, which can be kept shut for other threads beyond a call."""

from __future__ import annotations

from threading import Condition, get_ident
from types import TracebackType


class WriteLock:
    """Owns a condition. Its owner may enter again; so may the thread that paused it.

    Tables that step together share one: a pause of one of them is a pause of all.

    >>> lock = WriteLock()
    >>> with lock, lock:
    ...     lock.pause()
    >>> with lock:  # others wait
    ...     lock.resume()
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._owner: int | None = None
        self._depth = 0
        self._paused_by: int | None = None
        self._pauses = 0

    def __enter__(self) -> None:
        me = get_ident()
        with self._changed:
            while self._owner not in (None, me) or self._paused_by not in (None, me):
                self._changed.wait()
            self._owner = me
            self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._changed.notify_all()

    def pause(self) -> None:
        """Other threads wait until as many `resume`; the caller owns the lock."""
        self._paused_by = get_ident()
        self._pauses += 1

    def resume(self) -> None:
        """Ends one pause, from any thread; the last one lets the others in."""
        with self._changed:
            self._pauses -= 1
            if not self._pauses:
                self._paused_by = None
                self._changed.notify_all()
