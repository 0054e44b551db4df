"""A process that ends does not cut off the thread of a table: that would abort it."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import atexit

def report():  # registered first, so it runs last
    print(any(t.name == "hedgerow write-back" for t in threading.enumerate()), back.is_alive())

atexit.register(report)
import threading
import torch
import hedgerow as hr
from hedgerow.tiers.build import Tiers, tier_table

config = hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd()),))
table = tier_table(config, Tiers(mode="CACHING", fast_rows=4))
for first in (0, 0, 4, 4):
    table.apply_gradients(torch.arange(first, first + 4), torch.ones(4, 2))
back = table._back._thread
assert back.is_alive()  # it waits for more
"""


def test_the_thread_that_writes_back_ends_before_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False False\n", "")
