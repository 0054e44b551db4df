"""Makes the next item of an iterator in a thread of its own while the last one is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Items in their order, one made ahead; use it in a `with`. Owns a thread.

    At most one item waits, made or being made, besides the one in the caller's hands. What the
    iterator raises is raised where its item would come. Leaving the `with` waits for the item that
    is being made: nothing reads the source after that.

    >>> with Ahead(iter("abc")) as items:
    ...     list(items)
    ['a', 'b', 'c']
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._wanted = threading.Semaphore(1)
        self._made: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()  # None: the end
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="make ahead", daemon=True)

    def __iter__(self) -> Iterator[T]:
        while (made := self._made.get()) is not None:
            if isinstance(made, BaseException):
                raise made
            self._wanted.release()
            yield made[0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._wanted.release()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wanted.acquire() and not self._closed:
                for item in self._items:
                    self._made.put((item,))
                    break
                else:
                    self._made.put(None)
                    return
        except BaseException as error:  # whatever it is, the one who waits must hear of it
            self._made.put(error)
