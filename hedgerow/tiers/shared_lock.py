"""A lock that readers share and one mover has alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from types import TracebackType


class SharedLock:
    """Owns a condition. Who waits to have it alone goes before readers that come later.

    So no thread may take it again while it has it: it would wait for who waits for it.

    >>> lock = SharedLock()
    >>> with lock.shared():
    ...     pass
    >>> with lock.alone():
    ...     pass
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._readers = 0
        self._waiting = 0
        self._alone = False
        self._shared = _Shared(self)

    def shared(self) -> _Shared:
        """Beside other readers."""
        return self._shared

    @contextmanager
    def alone(self) -> Iterator[None]:
        """After all readers have left, and before others come."""
        with self._changed:
            self._waiting += 1
            try:
                while self._alone or self._readers:
                    self._changed.wait()
                self._alone = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            while self._alone or self._waiting:
                self._changed.wait()
            self._readers += 1

    def _leave(self) -> None:
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()


class _Shared:
    """What readers enter; a step does so several times, and a generator would take longer."""

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock._enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock._leave()
