"""Lets the thread of a save give way to training."""

from __future__ import annotations

import os
import sys
import threading

_NICE = 10  # about a tenth of a processor that training wants too; all of one it does not want


def give_way() -> None:
    """Lowers the priority of this thread, and of the threads it will start, for good.

    Only Linux knows priorities of threads; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, max(now, _NICE))
