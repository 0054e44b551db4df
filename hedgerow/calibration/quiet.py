"""Measures while no other program uses the core of the measuring thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id
from typing import Generic, TypeVar

_TASKS = Path("/proc/self/task")


class Cores:
    """The cores on which the constructing thread may run; only that thread uses it.

    It is empty if the system cannot report cores or does not let a thread choose one.
    """

    def __init__(self) -> None:
        self._all: set[int] = set()
        self._here: int | None = None
        self._bound: set[int] = set()  # other threads that are bound to the core on purpose
        if hasattr(os, "sched_setaffinity") and _TASKS.is_dir():
            own = os.sched_getaffinity(0)
            try:
                os.sched_setaffinity(0, own)
            except OSError:  # forbidden by a sandbox
                return
            self._all = own

    def __iter__(self) -> Iterator[int]:
        """Iterates over the cores, from the current one."""
        return iter(sorted(self._all, key=lambda core: (core < (self._here or 0), core)))

    def settle(self, core: int) -> None:
        """Binds this thread to a core."""
        self.leave()
        self._bound = {task for task, where in _others() if where == {core}}
        os.sched_setaffinity(0, {core})
        self._here = core

    def free_others(self) -> None:
        """Unbinds threads that this thread has started: they inherit its core."""
        if self._here is None:
            return
        for task, where in _others():
            if where == {self._here} and task not in self._bound:
                with suppress(OSError):  # the thread has ended
                    os.sched_setaffinity(task, self._all)

    def leave(self) -> None:
        """Unbinds this thread, and the threads that it has started."""
        if self._here is not None:
            self.free_others()
            os.sched_setaffinity(0, self._all)
            self._here = None


def _others() -> Iterator[tuple[int, set[int]]]:
    """Yields all other threads of the process, with their cores."""
    for name in os.listdir(_TASKS):
        with suppress(OSError):  # the thread has ended
            if int(name) != get_native_id():
                yield int(name), os.sched_getaffinity(int(name))


T = TypeVar("T")
_DISTURBED = 1.25  # times the best time; a disturbed core usually takes twice as long
_TRIES = 4  # attempts per wanted measurement
_PAUSE_S = 0.02  # other programs use a core for tenths of a second, or for seconds


class Yardstick:
    """A small piece of Python whose time shows whether other programs use the core.

    On virtual machines with shared cores, one core in two can run at half its speed for seconds
    at a time. Steps that are bound by launches then take twice as long, and so does this code.
    """

    def __init__(self, seconds: float = 0.0, patience_s: float = 60.0) -> None:
        """Learns the speed of a quiet core for `seconds`; later waits take at most `patience_s`."""
        end = time.perf_counter() + seconds
        self.patience_s = patience_s
        self._cores = Cores()
        self._best = min(_once() for _ in range(20))
        while time.perf_counter() < end:
            time.sleep(_PAUSE_S)
            for core in self._cores:
                self._cores.settle(core)
                self._best = min(self._best, _once(), _once())
        self.leave()

    def is_quiet(self) -> bool:
        """Returns whether this core has its full speed now."""
        now = min(_once() for _ in range(3))
        self._best = min(self._best, now)
        return now <= _DISTURBED * self._best

    def settle(self) -> bool:
        """Moves this thread to a core with full speed; returns whether there is one."""
        self._cores.free_others()
        if self.is_quiet():
            return True
        for core in self._cores:
            self._cores.settle(core)
            if self.is_quiet():
                return True
        self.leave()
        return False

    def leave(self) -> None:
        """Unbinds the thread from its core."""
        self._cores.leave()


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """Measurements, and whether they were taken on a quiet core."""

    values: list[T]
    quiet: bool


def measured(
    measure: Callable[[], T], count: int, yardstick: Yardstick, *, tries: int = _TRIES
) -> Measured[T]:
    """Returns up to `count` measurements before and after which the core was quiet.

    Stops after `tries` times `count` measurements, or when the patience ends. If no measurement
    was quiet, returns `count` others.

    >>> set(measured(lambda: 1.0, 2, Yardstick()).values)
    {1.0}
    """
    good: list[T] = []
    others: list[T] = []
    try:
        for _ in range(tries * count):
            begun = time.perf_counter()
            before = yardstick.settle()
            value = measure()
            if before and yardstick.is_quiet():
                good.append(value)
            else:
                others.append(value)
                time.sleep(_PAUSE_S)
                yardstick.patience_s -= time.perf_counter() - begun
            impatient = yardstick.patience_s < 0
            if len(good) == count or (impatient and len(good) + len(others) >= count):
                break
    finally:
        yardstick.leave()
    return Measured(good or others[:count], bool(good))


def _once() -> float:
    begun = time.perf_counter()
    total, kept = 0, {}
    for number in range(3000):
        total += number
        kept[number & 63] = total
    return time.perf_counter() - begun
