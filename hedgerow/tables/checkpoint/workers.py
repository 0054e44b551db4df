"""Threads for the files of one save or load."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class Workers:
    """A few threads that run tasks in order; leaving the `with` waits for all of them.

    With 0 threads a task runs at once, in the thread that submits it.
    An executor of the standard library takes no tasks once the main thread has ended; a save that
    was started before must still be able to finish.

    >>> with Workers(2) as workers:
    ...     workers.map(abs, [-1, -2])
    [1, 2]
    """

    def __init__(self, threads: int) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.threads = threads
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]

    def __enter__(self) -> Workers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, function: Callable[..., T], *values: Any) -> Future[T]:
        """Runs a function when a thread is free."""
        future: Future[T] = Future()
        if self.threads:
            self._tasks.put((future, function, values))
        else:
            _run(future, function, values)
        return future

    def map(self, function: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """The results for all items, in their order; the first error is raised."""
        futures = [self.submit(function, item) for item in items]
        return [future.result() for future in futures]

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            _run(*task)


def in_background(function: Callable[..., T], *values: Any) -> Future[T]:
    """Runs a function in a thread of its own.

    >>> in_background(abs, -1).result()
    1
    """
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(future, function, values)).start()
    return future


def _run(future: Future[Any], function: Callable[..., Any], values: tuple[Any, ...]) -> None:
    try:
        future.set_result(function(*values))
    except BaseException as error:  # it belongs to whoever asks for the result
        future.set_exception(error)
