"""Our module keeps to itself beside others made with nanobind, of which DuckDB has one."""

from __future__ import annotations

import subprocess
import sys

import pytest

_REFUSED = """
native.set_memory_limit(1000)
try:
    table.assign(torch.arange(100_000), torch.ones(100_000, 4))
except hr.core.errors.OutOfMemoryError:
    print("as it should be")
"""
_INTERRUPTED = """
view = []
opener = threading.Thread(target=lambda: view.append(table.snapshot(aside_bytes=0)))
opener.start()
opener.join()
table.assign(torch.arange(1000), torch.zeros(1000, 4))
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    table.assign(torch.arange(1000), torch.ones(1000, 4))
except KeyboardInterrupt:
    print("as it should be")
view[0].close()
"""


@pytest.mark.parametrize(
    ("what", "ours_first"),
    [
        pytest.param(_REFUSED, False, id="refused-last"),
        pytest.param(_INTERRUPTED, True, id="interrupted-first"),
        pytest.param(_REFUSED, True, id="refused-first", marks=pytest.mark.long),
        pytest.param(_INTERRUPTED, False, id="interrupted-last", marks=pytest.mark.long),
    ],
)
def test_errors_stay_ours_whoever_was_loaded_first(what: str, ours_first: bool) -> None:
    program = f"""
import os, signal, threading
import torch
import hedgerow as hr
from hedgerow import native
if {ours_first}:
    native.threads()
import duckdb
duckdb.sql("select 1").fetchall()
table = hr.HostTable(hr.TableConfig("t", (hr.Segment(4, hr.Zeros(), hr.Sgd()),)))
if {what == _INTERRUPTED}:
    table.assign(torch.arange(1000), torch.ones(1000, 4))
{what}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "as it should be\n", done.stderr
