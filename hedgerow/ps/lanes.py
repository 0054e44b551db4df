"""Threads of a server that work on its tables while its loop serves the socket."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .frames import Buffer, Request

GROUP = 64  # writes that one flush of the log may cover


class Room:
    """How much work may wait: requests and their bytes. Safe from many threads.

    >>> room = Room(requests=1, room_bytes=100)
    >>> room.take(70), room.take(20)
    (True, False)
    """

    def __init__(self, requests: int, room_bytes: int) -> None:
        self._lock = threading.Lock()
        self._requests, self._bytes = requests, room_bytes
        self.waiting = 0
        self.waiting_bytes = 0

    def take(self, amount_bytes: int) -> bool:
        """Whether there was room; one request always finds some, however large it is."""
        with self._lock:
            full = self.waiting_bytes + amount_bytes > self._bytes and self.waiting > 0
            if full or self.waiting >= self._requests:
                return False
            self.waiting += 1
            self.waiting_bytes += amount_bytes
            return True

    def give(self, amount_bytes: int) -> None:
        """A request is done."""
        with self._lock:
            self.waiting -= 1
            self.waiting_bytes -= amount_bytes


class Outflow:
    """Bytes of large answers that clients have not taken yet. Safe from many threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lower = threading.Condition()
        self.waiting_bytes = 0

    def hold(self, buffer: object, amount_bytes: int) -> None:
        """Counts a buffer until nobody holds it: then the socket has sent it."""
        with self._lower:
            self.waiting_bytes += amount_bytes
        weakref.finalize(buffer, self._sent, amount_bytes).atexit = False

    def _sent(self, amount_bytes: int) -> None:
        with self._lower:
            self.waiting_bytes -= amount_bytes
            self._lower.notify_all()

    def has_room(self, patience_s: float) -> bool:
        """Waits until less is under way than may be; False if that takes too long."""
        with self._lower:
            return self._lower.wait_for(lambda: self.waiting_bytes < self._most, patience_s)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A request that was accepted, and to where its answer goes."""

    request: Request
    to: object
    room_bytes: int
    arrived_s: float = field(default_factory=time.monotonic)

    def is_late(self) -> bool:
        """Whether its client has stopped waiting."""
        limit_ms = self.request.origin.deadline_ms
        return limit_ms > 0 and (time.monotonic() - self.arrived_s) * 1000 > limit_ms


class Lane:
    """Threads that take jobs in order, each one some at a time.

    `work` never raises: what goes wrong is an answer.
    """

    def __init__(
        self, name: str, threads: int, work: Callable[[list[Job]], None], group: int = 1
    ) -> None:
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()
        self._work, self._group = work, group
        self._closed = False
        self._running = 0
        self._threads = [
            threading.Thread(target=self._serve, name=f"hedgerow {name} {i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Queues a job."""
        with self._ready:
            self._jobs.append(job)
            self._ready.notify()

    def is_idle(self) -> bool:
        """Whether everything that was queued is done."""
        with self._ready:
            return not self._jobs and not self._running

    def _serve(self) -> None:
        while True:
            with self._ready:
                while not self._jobs:
                    if self._closed:
                        return
                    self._ready.wait()
                count = min(self._group, len(self._jobs))
                jobs = [self._jobs.popleft() for _ in range(count)]
                self._running += 1
            try:
                self._work(jobs)
            finally:
                del jobs  # they hold memory of clients, which the next may be long in replacing
                with self._ready:
                    self._running -= 1

    def close(self) -> None:
        """Does what is queued, then ends."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()


class Outbox:
    """Answers on their way to the loop, which is woken for them."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._answers: queue.SimpleQueue[tuple[object, Sequence[Buffer]]] = queue.SimpleQueue()
        self._wake = wake

    def put(self, to: object, frames: Sequence[Buffer]) -> None:
        """From any thread."""
        self._answers.put((to, frames))
        self._wake()

    def take(self) -> tuple[object, Sequence[Buffer]] | None:
        """The next, if there is one."""
        try:
            return self._answers.get_nowait()
        except queue.Empty:
            return None
