"""Free memory, from the kernel and from a container's limit."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import table
from hedgerow.calibration.machine import free_bytes


def _system(root: Path, **files: str) -> Path:
    places = {
        "meminfo": "proc/meminfo",
        "limit": "sys/fs/cgroup/memory.max",
        "used": "sys/fs/cgroup/memory.current",
    }
    for name, text in files.items():
        path = root / places[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    meminfo = "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n"
    root = _system(tmp_path, meminfo=meminfo, limit="3000000\n", used="1000000\n")
    assert free_bytes(root) == 2_000_000
    _system(tmp_path, limit="max\n")
    assert free_bytes(root) == 5000 * 1024


def test_a_system_that_says_nothing_sets_no_limit(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) is None


@pytest.mark.parametrize("case", [table.memory, partial(table.insert_calls, rounds=1)])
def test_a_table_alone_that_does_not_fit_is_refused(
    case: Callable[[int, int], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "free_bytes", lambda: 10**9)
    result = case(10**8, 1000)
    assert re.search("needs about .* of memory, and .* are free", result["missing"])
