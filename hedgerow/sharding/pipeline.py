"""Runs work of other batches next to the training thread: earlier lookups and delayed updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from ..core import checks
from ..core.counters import Counters
from ..core.errors import StateError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Item(Generic[A]):
    """A value in a queue, with the global step and the request time to which it belongs."""

    value: A
    step: int = 0
    ts: int = 0


class Prefetch(Generic[A, B]):
    """Does `work` for up to `capacity` items ahead of the consumer, in one other thread.

    Results come in the order of the source. Capacity 0 turns prefetching off: `take` then does the
    work. What the work reads can lack the updates of as many steps as the queue holds. `counters`
    count "taken" items and "stale_steps", the sum of these delays if the consumer passes its step
    to `take`. An error of the source or of the work is raised by the `take` of its item. Work that
    uses exchanges needs its own group. The consumer may replace `work`; items that start later use
    the new work.

    >>> with Prefetch([Item(2, step=0), Item(3, step=1)], lambda item: item.value**2, 1) as ahead:
    ...     [item.value for item in ahead]
    [4, 9]
    """

    def __init__(
        self, source: Iterable[Item[A]], work: Callable[[Item[A]], B], capacity: int
    ) -> None:
        self.capacity = checks.count("capacity", capacity)
        self.counters = Counters()
        self.work = work
        self._source = iter(source)
        self._queue: deque[tuple[int, Future[Item[B] | None]]] = deque()
        self._pool = _one_thread("prefetch") if capacity else None
        self._taken, self._closed = 0, False
        self.failed: BaseException | None = None  # error of source or work, raised by a `take`
        self._fill()

    def __enter__(self) -> Prefetch[A, B]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item[B]]:
        while (item := self.take()) is not None:
            yield item

    def take(self, step: int | None = None) -> Item[B] | None:
        """Returns the next result, None after the last. `step` is that of the training thread."""
        if self._closed:
            raise StateError("take from a prefetch that is closed; make a new one.")
        if self._pool is None:
            started, item = self._taken, self._next(self.work)
        else:
            self._fill()
            started, future = self._queue.popleft()
            item = future.result()
            if item is not None:
                self._fill()
        if item is None:
            return None
        self.counters.add("taken")
        self.counters.add(
            "stale_steps", self._taken - started if step is None else step - item.step
        )
        self._taken += 1
        return item

    def ready(self) -> Iterator[Item[B]]:
        """Yields results that are not taken yet, in order, up to the first that is not done."""
        for _, future in tuple(self._queue):
            if not future.done() or future.cancelled() or future.exception() is not None:
                return
            item = future.result()
            if item is None:
                return
            yield item

    def in_turn(self, other: Callable[[], C]) -> C:
        """Runs other work in the prefetch thread, after the work that was started, and waits."""
        return other() if self._pool is None else self._pool.submit(other).result()

    def drain(self) -> list[Item[B]]:
        """Returns all results that were started and not taken. Starts nothing new."""
        found = [future.result() for _, future in self._queue]
        self._queue.clear()
        self._closed = True
        return [item for item in found if item is not None]

    def close(self) -> None:
        """Stops, and waits for the work in progress. Results that were not taken are lost."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._queue.clear()

    def _next(self, work: Callable[[Item[A]], B]) -> Item[B] | None:
        try:
            item = next(self._source, None)
            return None if item is None else Item(work(item), item.step, item.ts)
        except BaseException as error:
            self.failed = error
            raise

    def _fill(self) -> None:
        if self._pool is not None:
            while len(self._queue) < self.capacity:
                self._queue.append((self._taken, self._pool.submit(self._next, self.work)))


class Delayed(Generic[A]):
    """Does `work` for each item `capacity` puts later: updates run during later steps.

    When more than `capacity` items wait, a put starts the work of the oldest. It runs in one other
    thread, or in the caller's thread if `background` is off, in the order of the puts. With
    capacity 0, a put starts the work of its own item. `drain` does the work of all items that wait.
    An error of the work is raised by the next call; later items still wait. `counters` count "put",
    "done" and "waiting_steps", the sum of the puts for which items waited.

    >>> done = []
    >>> later = Delayed(lambda item: done.append(item.step), 1, background=False)
    >>> for step in range(3):
    ...     later.put(Item("gradients", step))
    >>> done
    [0, 1]
    >>> later.drain()
    >>> done
    [0, 1, 2]
    """

    def __init__(
        self, work: Callable[[Item[A]], object], capacity: int, *, background: bool = True
    ) -> None:
        self.capacity = checks.count("capacity", capacity)
        self.counters = Counters()
        self._work = work
        self._waiting: deque[tuple[int, Item[A]]] = deque()
        self._pool = _one_thread("delayed") if capacity and background else None
        self._running: deque[Future[None]] = deque()
        self._puts, self._closed = 0, False

    def __enter__(self) -> Delayed[A]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(drain=error is None)

    def put(self, item: Item[A]) -> None:
        """Adds an item, and starts the oldest if too many wait."""
        if self._closed:
            raise StateError("put into a stage that is closed; make a new one.")
        self._settle()
        self._waiting.append((self._puts, item))
        self._puts += 1
        self.counters.add("put")
        while len(self._waiting) > self.capacity:
            self._release()

    def drain(self) -> None:
        """Does the work of all items that wait, and returns when it is done."""
        self._settle()
        while self._waiting:
            self._release()
        self._settle()

    def close(self, *, drain: bool = True) -> None:
        """Drains unless `drain` is False, and ends the thread."""
        self._closed = True
        try:
            if drain:
                self.drain()
        finally:
            self._waiting.clear()
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)

    def _release(self) -> None:
        put, item = self._waiting.popleft()
        self.counters.add("waiting_steps", self._puts - 1 - put)
        if self._pool is None:
            self._do(item)
        else:
            self._running.append(self._pool.submit(self._do, item))

    def _do(self, item: Item[A]) -> None:
        self._work(item)
        self.counters.add("done")

    def _settle(self) -> None:
        """Waits for the work in progress. Raises its error."""
        while self._running:
            self._running.popleft().result()


def _one_thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=f"hedgerow-{name}")
