"""The benchmark of servers: every way gives the same rows, and the original's numbers hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hedgerow.bench.ps_original import run_original, small_lookups
from hedgerow.cli.app import app

pytestmark = pytest.mark.xdist_group("processes")


def test_the_originals_numbers_and_traces(tmp_path: Path) -> None:
    results = run_original(3, 2_000, 1, tmp_path)
    assert [one["case"].split(",")[0] for one in results] == [
        "lookup",
        "lookup_dedup",
        "apply_gradients",
    ]
    assert all(one["equal"] for one in results)
    for name in ("lookup", "lookup_dedup", "apply_gradients"):
        assert json.loads((tmp_path / name / "trace.json").read_text())["traceEvents"]


def test_small_lookups_tell_p50_and_p99() -> None:
    for one in small_lookups(2, 20):
        assert 0 < one["p50_ms"] <= one["p99_ms"]


@pytest.mark.long
def test_other_ways_give_the_same_rows() -> None:
    """One without a library of its own; the others are compared in the same way."""
    done = CliRunner().invoke(
        app, ["bench", "ps", "--quick", "--rounds", "1", "--peers", "plain sockets", "--json"]
    )
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)["results"]
    assert {one["peer"] for one in results} == {"plain sockets"}
    assert all(one["equal"] for one in results)
