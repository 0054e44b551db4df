"""Lets a save give way to training."""

from __future__ import annotations

import os
import sys
import threading

from ... import native

_NICE = 19  # next to nothing of a processor that training wants too; all of one it does not want


def give_way() -> None:
    """Lowers the priority of this thread, and of the threads it will start, for good.

    Only Linux knows priorities of threads; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, max(now, _NICE))


def threads_beside(most: int) -> int:
    """Threads for a save beside training: a quarter of those of the tables.

    Where that is none, the save runs in its own thread alone: each thread more, whatever its
    priority, makes training wait for a turn of the scheduler more often.
    """
    return min(most, native.threads() // 4)
