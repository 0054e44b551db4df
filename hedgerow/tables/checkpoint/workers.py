"""The threads of a save or a load, their priority, and the progress of the work."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from ... import native
from ...core.errors import SaveCancelledError

T = TypeVar("T")
_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class Workers:
    """A few threads that run tasks in order; leaving the `with` block waits for all tasks.

    With 0 threads, a task runs immediately in the thread that submits it. The standard library's
    executors accept no tasks after the main thread has ended, but a save that was started before
    must still finish.

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
        """Returns the results for all items, in order; raises the first error."""
        futures = [self.submit(function, item) for item in items]
        return [future.result() for future in futures]

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            _run(*task)


def in_background(function: Callable[..., T], *values: Any) -> Future[T]:
    """Runs a function in a new thread.

    >>> in_background(abs, -1).result()
    1
    """
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(future, function, values)).start()
    return future


def _run(future: Future[Any], function: Callable[..., Any], values: tuple[Any, ...]) -> None:
    try:
        future.set_result(function(*values))
    except BaseException as error:  # raised by Future.result()
        future.set_exception(error)


_NICE = 19  # the process takes little CPU time that training wants, but all that is idle


def lower_priority() -> None:
    """Lowers the priority of this thread and of the threads it starts, permanently.

    Only Linux has priorities per thread; on other systems this does nothing.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, max(now, _NICE))


def background_threads(most: int) -> int:
    """Returns the number of threads for a save during training: a quarter of the table threads.

    If that is 0, the save runs in its own thread only: each further thread, at any priority, makes
    training wait more often for the scheduler.
    """
    return min(most, native.threads() // 4)


Report = Callable[["CheckpointProgress"], None]


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """The progress of a save or load; `rows_total` is the number of rows at the start."""

    rows: int
    file_bytes: int
    rows_total: int


class Meter:
    """Counts work from many threads. It owns a lock."""

    def __init__(self, rows_total: int = 0, report: Report | None = None) -> None:
        self._lock = threading.Lock()
        self._rows, self._bytes, self._total = 0, 0, rows_total
        self._report = report
        self._cancelled = threading.Event()

    def add(self, rows: int, file_bytes: int) -> None:
        """Adds to the counters; raises if the work was cancelled."""
        with self._lock:
            self._rows += rows
            self._bytes += file_bytes
            now = CheckpointProgress(self._rows, self._bytes, self._total)
            if self._report is not None:
                self._report(now)  # inside the lock: reports come in order
        self.go_on()

    def go_on(self) -> None:
        """Raises if the work was cancelled."""
        if self._cancelled.is_set():
            raise SaveCancelledError("the save was cancelled; an earlier checkpoint is untouched.")

    def progress(self) -> CheckpointProgress:
        """Returns the progress so far."""
        with self._lock:
            return CheckpointProgress(self._rows, self._bytes, self._total)

    def cancel(self) -> None:
        """Cancels the work."""
        self._cancelled.set()
