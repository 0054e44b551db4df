"""`hedgerow bench tiers` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hedgerow import native
from hedgerow.cli.app import app
from hedgerow.core.errors import InputError

HERE = Path(__file__).parent  # on a disk, where the budget can be kept; the file has no name


def _run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["bench", "tiers", "--quick", *map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_a_run_prints_one_json_object_with_equal_results_within_the_budget() -> None:
    before, files = native.threads(), sorted(HERE.iterdir())
    report = json.loads(_run("--json", "--rounds", 1, "--threads", 1, "--folder", HERE))
    assert native.threads() == before
    assert sorted(HERE.iterdir()) == files
    assert list(report) == ["bench", "work", "versions", "results"]
    assert report["bench"] == "tiers"
    assert (report["work"]["rows"], report["work"]["dim"]) == (10_000, 64)
    assert [(r["case"], r["peer"]) for r in report["results"]] == [
        (f"{mode} {access}", "all in memory")
        for mode in ("pages", "HYBRID", "CACHING")
        for access in ("zipf", "uniform")
    ]
    for result in report["results"]:
        assert result["equal"] is True
        assert result["file_bytes"] >= 4 * result["budget_bytes"]
        assert result["budget_bytes"] / 2 < result["measured_bytes"] < 1.25 * result["budget_bytes"]
        assert result["ours_ids_per_s"] == pytest.approx(
            1e3 * 2 * 512 / result["ours_ms"], rel=0.01
        )


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        _run("--folder", tmp_path / "absent")
