"""`hedgerow bench checkpoint` as a user runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import checkpoint
from hedgerow import native
from hedgerow.cli.app import app, main
from hedgerow.core.errors import InputError


def _run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["bench", "checkpoint", "--quick", *map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_a_run_prints_one_json_object_with_equal_results(tmp_path: Path) -> None:
    before = native.threads()
    report = json.loads(_run("--json", "--rounds", 2, "--threads", 1, "--folder", tmp_path))
    assert native.threads() == before
    assert list(tmp_path.iterdir()) == []  # all files are gone
    assert list(report) == ["bench", "work", "versions", "results"]
    assert report["bench"] == "checkpoint"
    work = report["work"]
    assert (work["rows"], work["dim"], work["rounds"], work["threads"]) == (50_000, 16, 2, 1)
    assert {"hedgerow", "torch", "numpy", "pyarrow"} <= set(report["versions"])
    results = report["results"]
    assert [(r["case"], r["peer"]) for r in results] == [
        ("save", "write + fsync"),
        ("load", "assign"),
        ("lookups beside a save", "without a save"),
        ("lookups beside a save p99", "without a save"),
    ]
    for result in results:
        assert result["equal"] is True
        assert result["ours_ms"] > 0
        assert result["ratio"] == pytest.approx(result["peer_ms"] / result["ours_ms"], rel=0.05)
        assert result["ratio_range"][0] <= result["ratio_range"][1]
    save, load, lookups, p99 = results
    assert save["file_bytes"] > 50_000 * (8 + 8 + 2 * 16 * 4)
    assert load["ours_rows_per_s"] > 0
    assert lookups["batches"] >= 2 * work["lookups"]
    assert p99["ours_ms"] >= lookups["ours_ms"]


def test_a_run_without_json_is_a_table() -> None:
    shown = _run("--rounds", 1)
    for text in ("save", "write + fsync", "load", "assign", "lookups beside a save p99", "yes"):
        assert text in shown


def test_progress_ends_at_its_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    settings = checkpoint.Settings(rounds=1, quick=True)
    checkpoint.run(settings, lambda _, done, total: seen.append((done, total)), tmp_path)
    assert seen == sorted(seen)
    assert seen[-1] == (6, 6)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        _run("--folder", tmp_path / "absent")


def test_results_that_differ_end_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"case": "load", "peer": "assign", "equal": False}
    monkeypatch.setattr(checkpoint, "run", lambda *_: {"results": [result]})
    monkeypatch.setattr(sys, "argv", ["hedgerow", "bench", "checkpoint", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "results differ: load of assign" in capsys.readouterr().err
