from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import ctypes, os
from hedgerow.planner.solver.core_milp import stray_output_to_stderr
print("before")
with stray_output_to_stderr():
    ctypes.CDLL(None).puts(b"stray")
print("after")
"""


def test_what_a_library_prints_goes_to_stderr_and_ours_stays_in_order() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout == "before\nafter\n"
    assert said.stderr == "stray\n"


def test_without_standard_output_nothing_happens() -> None:
    script = "import os; os.close(1)\n" + _SCRIPT.replace("print", "repr")
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert said.stdout == b""
