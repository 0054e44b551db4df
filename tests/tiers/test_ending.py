"""A process that ends does not cut off the threads of a table: that would abort it."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import atexit

def report():  # registered first, so it runs last
    print([thread.is_alive() for thread in threads])

atexit.register(report)
import torch
import hedgerow as hr
from hedgerow.tiers.tier_tables import Tiers, tier_table

config = hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd()),))
table = tier_table(config, Tiers(mode="CACHING", fast_rows=4))
for first in (0, 0, 4, 4):
    table.apply_gradients(torch.arange(first, first + 4), torch.ones(4, 2))
table.prefetch(torch.arange(4)).wait()
threads = [table.moves.write_back.thread, table.prefetcher.thread]
assert all(thread.is_alive() for thread in threads)  # they wait for more
"""


def test_threads_of_a_table_end_before_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[False, False]\n", "")
