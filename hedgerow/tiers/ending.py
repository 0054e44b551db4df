"""Ends a thread before the interpreter does: one that comes back from the core then aborts it."""

from __future__ import annotations

import weakref
from threading import Condition, Thread, current_thread


class Ending:
    """Tells the thread of `owner` when the process ends, and waits for it; shares its lock.

    >>> class Owner: pass
    >>> owner, changed = Owner(), Condition()
    >>> Ending(owner, changed).has_come
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
