"""A lock that readers share and one mover has alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


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

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Beside other readers."""
        with self._changed:
            while self._alone or self._waiting:
                self._changed.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

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
