"""The locks of tables of two tiers, and how their threads end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Thread, current_thread, get_ident
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


class ThreadStopper:
    """Tells the thread of `owner` when the process ends, and waits for it; shares its lock.

    >>> class Owner: pass
    >>> owner, changed = Owner(), Condition()
    >>> ThreadStopper(owner, changed).has_come
    False
    """

    def __init__(self, owner: object, changed: Condition) -> None:
        self.has_come = False
        self._changed = changed
        self._thread: Thread | None = None
        weakref.finalize(owner, self._end)  # at exit, too: before threads are cut off

    def start(self, thread: Thread) -> None:
        """Starts the thread, which looks at `has_come` whenever it was told of a change."""
        thread.start()
        self._thread = thread

    def _end(self) -> None:
        thread = self._thread
        # In a forked child nobody is alive, and the lock may be held for ever.
        if thread is None or not thread.is_alive() or thread is current_thread():
            return
        with self._changed:
            self.has_come = True
            self._changed.notify_all()
        thread.join()
