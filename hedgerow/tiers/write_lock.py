"""A lock for whoever writes, which can be kept shut for other threads beyond a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

    def enter_now(self) -> bool:
        """Enters if nobody is to be waited for; whether that was so."""
        me = get_ident()
        with self._changed:
            is_free = self._owner in (None, me) and self._paused_by in (None, me)
            if is_free:
                self._owner = me
                self._depth += 1
            return is_free

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


@contextmanager
def all_of(locks: Sequence[WriteLock]) -> Iterator[None]:
    """Has all of these locks.

    It waits for one with none of the others: who saves several tables pauses them one after the
    other, in an order of its own, and would wait for ever for one that is held here.
    """
    first = 0
    while True:
        with ExitStack() as held:
            held.enter_context(locks[first])
            busy = [i for i, lock in enumerate(locks) if i != first and not _entered(lock, held)]
            if not busy:
                yield
                return
        first = busy[0]


def _entered(lock: WriteLock, held: ExitStack) -> bool:
    if not lock.enter_now():
        return False
    held.push(lock)
    return True
