"""A lock that is open in a forked child, even if a thread of the parent held it."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ForkLock:
    """A mutex for short sections that leave no half-done work worth keeping.

    A plain lock that another thread holds during a fork stays locked in the child for ever.

    >>> lock = ForkLock()
    >>> with lock:
    ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def open_anew(self) -> None:
        """Opens the lock in a forked child, where no thread holds it any more."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _open_all() -> None:
    for lock in list(_all):
        lock.open_anew()


os.register_at_fork(after_in_child=_open_all)
