"""Threads of a server: a few while clients are quick, more while slow ones hold them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any

_LOOK_S = 0.02
_LATE_S = 0.2  # a task that waited so long would have found a thread in a larger pool
_IDLE_S = 5.0  # after which a thread more than the few ends

_Task = tuple[float, "Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class ElasticPool(Executor):
    """Runs tasks on `few` threads, and on up to `most` while tasks wait behind stuck ones.

    grpcio reads a request in the thread that answers it, so a client that sends half a message
    holds a thread. A small pool would stop there; a large one is slow when all its threads are
    busy. Safe from many threads, owns a lock.

    >>> pool = ElasticPool(1, 4)
    >>> pool.submit(max, 3, 5).result()
    5
    >>> pool.shutdown()
    """

    def __init__(self, few: int, most: int) -> None:
        self._few, self._most = few, most
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._alive = 0
        self._taken = 0  # tasks begun: standing still while some wait means that all are stuck
        self._late = False
        self._add(few)
        threading.Thread(target=self._look, name="serving-pool", daemon=True).start()

    @property
    def threads(self) -> int:
        """Threads now."""
        return self._alive

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As every executor's."""
        if self._closed.is_set():
            raise RuntimeError("this pool is shut down")
        future: Future[Any] = Future()
        self._tasks.put((time.monotonic(), future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads once they are free; threads are daemons, so none holds the process."""
        self._closed.set()
        with self._lock:
            for _ in range(self._alive):
                self._tasks.put(None)

    def _add(self, count: int) -> None:
        with self._lock:
            count = min(count, self._most - self._alive)
            self._alive += max(0, count)
        for _ in range(count):
            threading.Thread(target=self._work, name="serving", daemon=True).start()

    def _look(self) -> None:
        """Adds threads when tasks wait and none was begun since the last look, or some late."""
        before = -1
        while not self._closed.wait(_LOOK_S):
            waiting, taken = self._tasks.qsize(), self._taken
            if waiting and (taken == before or self._late):
                self._add(waiting if taken == before else 1)
            before, self._late = taken, False

    def _work(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=_IDLE_S)
            except Empty:
                if self._may_end():
                    return
                continue
            if task is None:
                return
            since, future, fn, args, kwargs = task
            self._taken += 1  # may miss a count of another thread, and still moves
            if time.monotonic() - since > _LATE_S:
                self._late = True
            _run(future, fn, args, kwargs)
            del task, future, fn, args, kwargs  # so that a request's memory goes at once

    def _may_end(self) -> bool:
        with self._lock:
            if self._alive <= self._few or self._closed.is_set():
                return False
            self._alive -= 1
            return True


def _run(
    future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
