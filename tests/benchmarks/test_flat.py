"""The benchmark of slopes: it measures every call at both sizes, and refuses what does not fit."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import flat
from hedgerow.cli.app import app

_CALLS = {"index_select", "index_select_huge_pages", "gather_huge_pages", "lookup", "update"}


def test_the_command_gives_the_slope_of_every_call() -> None:
    run = CliRunner().invoke(app, ["bench", "flat", "--quick", "--rounds", "1", "--json"])
    assert run.exit_code == 0, run.output
    *sizes, slopes = json.loads(run.stdout)["results"]
    assert [size["rows"] for size in sizes] == list(flat.QUICK_ROWS)
    assert all(size[f"{call}_ns"] > 0 for size in sizes for call in _CALLS)
    assert slopes.keys() == {"case", *_CALLS}


def test_a_table_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "free_bytes", lambda: 1_000_000)
    run = CliRunner().invoke(app, ["bench", "flat", "--quick", "--rounds", "1", "--json"])
    assert run.exit_code == 0, run.output
    small, large = json.loads(run.stdout)["results"]
    assert "lookup_ns" in small
    assert "memory" in large["missing"]
