"""The benchmark over two processes: both sides train the same model, and reading ahead helps."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.xdist_group("processes")


@pytest.mark.long  # nine processes that import torch
def test_a_run_compares_equal_results_and_reports_what_is_missing() -> None:
    """In a process of its own: rank 0 of the group is the program itself."""
    command = [sys.executable, "-m", "hedgerow", "bench", "a2a", "--quick", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--peers", "torch all-to-all", "--json"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    compared, overlap = json.loads(done.stdout)["results"]
    assert compared["peer"] == "torch all-to-all"
    assert compared["equal"]
    assert compared["ours_ms"] > 0
    ratio = compared["peer_ms"] / compared["ours_ms"]
    assert compared["ratio"] == pytest.approx(ratio, abs=0.01)
    assert overlap["case"] == "overlap"
    assert overlap["saved_ms"] >= 10  # of 20 that the rows travel
