"""The locks of tables in two tiers, and the end of their threads."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Thread, current_thread, get_ident
from types import TracebackType


class SharedLock:
    """A lock that readers share and that one mover holds alone. Owns a condition.

    A waiting mover goes before readers that come later. A thread that holds the lock must not take
    it again: it would wait for the mover, which waits for the thread.

    >>> lock = SharedLock()
    >>> with lock.shared:
    ...     pass
    >>> with lock.alone():
    ...     pass
    """

    def __init__(self) -> None:
        self.shared = _Readers()  # `with lock.shared:` reads beside other readers

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until all readers have left, and keeps other readers and movers out."""
        readers = self.shared
        with readers.changed:
            readers.movers_waiting += 1
            try:
                while readers.has_mover or readers.inside:
                    readers.changed.wait()
                readers.has_mover = True
            finally:
                readers.movers_waiting -= 1
                readers.changed.notify_all()
        try:
            yield
        finally:
            with readers.changed:
                readers.has_mover = False
                readers.changed.notify_all()


class _Readers:
    """The context that readers of a `SharedLock` enter.

    It is a class and not a generator for speed, since a step enters it several times.
    """

    def __init__(self) -> None:
        self.changed = Condition()
        self.inside = 0
        self.movers_waiting = 0
        self.has_mover = False

    def __enter__(self) -> None:
        with self.changed:
            while self.has_mover or self.movers_waiting:
                self.changed.wait()
            self.inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.changed:
            self.inside -= 1
            self.changed.notify_all()


class WriteLock:
    """A lock for writers that can stay closed to other threads after a call. Owns a condition.

    The thread that holds the lock may enter it again, and so may the thread that paused it. Tables
    that step together share one lock, so a pause of one table pauses all.

    >>> lock = WriteLock()
    >>> with lock, lock:
    ...     lock.pause()
    >>> with lock:  # other threads wait
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
        """Keeps other threads out until `resume` is called as often. The caller holds the lock."""
        self._paused_by = get_ident()
        self._pauses += 1

    def resume(self) -> None:
        """Ends one pause, from any thread. The last call lets other threads in."""
        with self._changed:
            self._pauses -= 1
            if not self._pauses:
                self._paused_by = None
                self._changed.notify_all()


class ThreadStopper:
    """Ends the thread of `owner` when the process ends, and waits for it.

    A daemon thread that returns from native code after the interpreter has ended aborts the
    process. The stopper shares the owner's condition.

    >>> class Owner: pass
    >>> owner, changed = Owner(), Condition()
    >>> ThreadStopper(owner, changed).must_stop
    False
    """

    def __init__(self, owner: object, changed: Condition) -> None:
        self.must_stop = False
        self._changed = changed
        self._thread: Thread | None = None
        weakref.finalize(owner, self._stop)  # also runs at exit, before threads are stopped

    def start(self, thread: Thread) -> None:
        """Starts the thread. It must check `must_stop` whenever the condition is notified."""
        thread.start()
        self._thread = thread

    def _stop(self) -> None:
        thread = self._thread
        # A forked child has no such thread, and its copy of the lock may be held forever.
        if thread is None or not thread.is_alive() or thread is current_thread():
            return
        with self._changed:
            self.must_stop = True
            self._changed.notify_all()
        thread.join()
