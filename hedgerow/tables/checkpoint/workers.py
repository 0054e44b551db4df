"""The threads of a save or a load, their priority, and how much of the work is done."""

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


_NICE = 19  # next to nothing of a processor that training wants too; all of one it does not want


def lower_priority() -> None:
    """Lowers the priority of this thread, and of the threads it will start, for good.

    Only Linux knows priorities of threads; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, max(now, _NICE))


def background_threads(most: int) -> int:
    """Threads for a save beside training: a quarter of those of the tables.

    Where that is none, the save runs in its own thread alone: each thread more, whatever its
    priority, makes training wait for a turn of the scheduler more often.
    """
    return min(most, native.threads() // 4)


Report = Callable[["CheckpointProgress"], None]


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """What has been done; `rows_total` is what was there at the start."""

    rows: int
    file_bytes: int
    rows_total: int


class Meter:
    """Counts from many threads, under its own lock."""

    def __init__(self, rows_total: int = 0, report: Report | None = None) -> None:
        self._lock = threading.Lock()
        self._rows, self._bytes, self._total = 0, 0, rows_total
        self._report = report
        self._cancelled = threading.Event()

    def add(self, rows: int, file_bytes: int) -> None:
        """Counts what was done; raises if the work shall stop."""
        with self._lock:
            self._rows += rows
            self._bytes += file_bytes
            now = CheckpointProgress(self._rows, self._bytes, self._total)
            if self._report is not None:
                self._report(now)  # inside the lock: reports come in order
        self.go_on()

    def go_on(self) -> None:
        """Raises if the work shall stop."""
        if self._cancelled.is_set():
            raise SaveCancelledError("the save was cancelled; what was there before is untouched.")

    def progress(self) -> CheckpointProgress:
        """What has been done."""
        with self._lock:
            return CheckpointProgress(self._rows, self._bytes, self._total)

    def cancel(self) -> None:
        """Asks the work to stop."""
        self._cancelled.set()
