"""A lock for whoever writes, which can be kept shut for other threads beyond a call."""

from __future__ import annotations

from threading import Condition, get_ident
from types import TracebackType


class WriteLock:
    """Owns a condition. Its owner may enter again; so may the thread that paused it.

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
        """Other threads wait until `resume`; the caller owns the lock."""
        self._paused_by = get_ident()

    def resume(self) -> None:
        """Lets them in; from any thread, and as often as one likes."""
        with self._changed:
            self._paused_by = None
            self._changed.notify_all()
