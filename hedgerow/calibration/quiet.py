"""Measures while nobody else works on the core of the thread that measures."""

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
    """The processors that the thread which makes this may run on, to be used by it; single-owner.

    Where a system cannot tell, or does not let a thread choose, there are none.
    """

    def __init__(self) -> None:
        self._all: set[int] = set()
        self._here: int | None = None
        self._bound: set[int] = set()  # other threads that somebody wants there
        if hasattr(os, "sched_setaffinity") and _TASKS.is_dir():
            own = os.sched_getaffinity(0)
            try:
                os.sched_setaffinity(0, own)
            except OSError:  # a sandbox forbids it
                return
            self._all = own

    def __iter__(self) -> Iterator[int]:
        """One after the other, from the one that was settled on."""
        return iter(sorted(self._all, key=lambda core: (core < (self._here or 0), core)))

    def settle(self, core: int) -> None:
        """This thread runs there alone."""
        self.leave()
        self._bound = {task for task, where in _others() if where == {core}}
        os.sched_setaffinity(0, {core})
        self._here = core

    def free_others(self) -> None:
        """Threads that were started meanwhile run where their starter does: they let it alone."""
        if self._here is None:
            return
        for task, where in _others():
            if where == {self._here} and task not in self._bound:
                with suppress(OSError):  # it has ended
                    os.sched_setaffinity(task, self._all)

    def leave(self) -> None:
        """It runs anywhere again, and so do threads that it has started."""
        if self._here is not None:
            self.free_others()
            os.sched_setaffinity(0, self._all)
            self._here = None


def _others() -> Iterator[tuple[int, set[int]]]:
    """All other threads, and where they may run."""
    for name in os.listdir(_TASKS):
        with suppress(OSError):  # it has ended
            if int(name) != get_native_id():
                yield int(name), os.sched_getaffinity(int(name))


T = TypeVar("T")
_DISTURBED = 1.25  # times the best: half the speed is usual, so that nothing is near this
_TRIES = 4  # for each measurement that is wanted
_PAUSE_S = 0.02  # others stay for tenths of a second, or for seconds


class Yardstick:
    """A small piece of Python that always takes the same time, unless others use the core.

    On a virtual machine that shares its cores one in two of them has half its speed, each for
    seconds at a time: a step that is bound by launches takes twice as long there, and so does this.
    """

    def __init__(self, seconds: float = 0.0, patience_s: float = 60.0) -> None:
        """So many seconds it looks how a quiet core looks, so many in all may be lost later."""
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
        """Whether this core has its own speed now."""
        now = min(_once() for _ in range(3))
        self._best = min(self._best, now)
        return now <= _DISTURBED * self._best

    def settle(self) -> bool:
        """Moves this thread to a core that has its own speed; whether there is one."""
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
        """The thread runs anywhere again."""
        self._cores.leave()


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """Measurements, and whether they were taken while it was quiet."""

    values: list[T]
    quiet: bool


def measured(
    measure: Callable[[], T], count: int, yardstick: Yardstick, *, tries: int = _TRIES
) -> Measured[T]:
    """So many measurements before and after which the core was quiet; fewer where none is.

    Where it is never so, in `tries` times as many or until the patience ends, others are all there
    is.

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
