"""Which processor the thread that measures runs on: others may be using its twin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import get_native_id

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
