"""`hedgerow bench ops` as a user runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import ops
from hedgerow.cli.app import app, main
from hedgerow.core.errors import InputError


def _run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["bench", "ops", "--quick", *map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_a_run_prints_one_json_object_with_equal_results() -> None:
    report = json.loads(_run("--json", "--rounds", 2))
    assert list(report) == ["bench", "work", "versions", "results"]
    assert report["bench"] == "ops"
    assert (report["work"]["rounds"], report["work"]["threads"]) == (2, 2)
    assert {"hedgerow", "torch", "numpy"} <= set(report["versions"])
    for result in report["results"]:
        assert result["equal"] is True
        assert result["output"] == "fresh"
        assert result["ratio"] == pytest.approx(result["peer_ms"] / result["ours_ms"], rel=0.1)
        assert result["ratio_range"][0] <= result["ratio_range"][1]
        assert "trace" not in result
    names = [(r["case"], r["peer"]) for r in report["results"]]
    assert ("reduce and split", "torch chain") in names
    assert ("reduce and split", "one thread") in names
    assert len(names) == 2 * len(ops.CASES)


def test_a_run_without_json_is_a_table() -> None:
    shown = _run("--rounds", 1, "--cases", "reduce*", "--threads", 1)
    for text in ("reduce and split", "torch chain", "fresh", "yes"):
        assert text in shown


def test_a_profile_goes_to_the_folder_that_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    _run("--rounds", 1, "--cases", "reduce*", "--profile", folder, "--json")
    (path,) = folder.iterdir()
    assert path.name == "reduce_and_split.trace.json"
    assert any(event.get("name") == "hedgerow::fused_reduce_and_split" for event in _events(path))


def test_a_profile_without_a_folder_goes_to_that_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ops.tempfile, "gettempdir", lambda: str(tmp_path))
    for _ in range(2):
        report = json.loads(_run("--rounds", 1, "--cases", "reduce*", "--json", "--profile"))
        (path,) = (tmp_path / "distribution_ops_benchmark").iterdir()
        assert report["results"][-1]["trace"] == str(path)


def _events(path: Path) -> list[dict[str, object]]:
    return json.loads(path.read_text())["traceEvents"]


def test_a_folder_without_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without --profile"):
        _run(tmp_path)


def test_results_that_differ_end_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"case": "split", "peer": "torch chain", "equal": False}
    monkeypatch.setattr(ops, "run", lambda *_: {"results": [result]})
    monkeypatch.setattr(sys, "argv", ["hedgerow", "bench", "ops", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "results differ: split of torch chain" in capsys.readouterr().err
