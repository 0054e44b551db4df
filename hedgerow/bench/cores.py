"""Which processor the thread that measures runs on: others may be using its twin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TASKS = Path("/proc/self/task")


class Cores:
    """The processors of this process; single-owner. Where a system cannot tell, there are none.

    Threads that were started meanwhile run where their starter does, and would keep it from its
    own core: `settle` lets them all go again, and so does `leave`.
    """

    def __init__(self) -> None:
        can = hasattr(os, "sched_setaffinity") and _TASKS.is_dir()
        self._all = sorted(os.sched_getaffinity(0)) if can else []
        self._here = 0

    def __iter__(self) -> Iterator[int]:
        """One after the other, from the last that was settled on."""
        return iter(self._all[self._here :] + self._all[: self._here])

    def settle(self, core: int) -> None:
        """This thread runs there alone, all others anywhere."""
        self.leave()
        os.sched_setaffinity(0, {core})
        self._here = self._all.index(core)

    def leave(self) -> None:
        """All threads run anywhere."""
        for task in _TASKS.iterdir() if self._all else ():
            try:
                os.sched_setaffinity(int(task.name), self._all)
            except ProcessLookupError:  # it has ended
                continue
