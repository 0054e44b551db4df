"""`hedgerow bench table` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.show import show_table_bench

REPORT: dict[str, Any] = {
    "bench": "table",
    "work": {"cpu": "a processor", "threads": 2, "rounds": 5},
    "versions": {"hedgerow": "0.1.0"},
    "results": [
        {"case": "W1 lookup", "output": "fresh", "peer": "TBE", "missing": "no [environment]"},
        {"case": "W1 lookup", "output": "fresh", "peer": "EBC", "error": "ended with status 1"},
        {
            "case": "threads W2 lookup+Adagrad uniform",
            "peer": "nn.Embedding(sparse)",
            "output": "reused",
            "ours_ms": 1234.5,
            "peer_ms": 12345.678,
            "ratio": 10.0,
            "equal": False,
        },
        {"case": "insert calls", "rows": 9, "slowest_over_median": 3.5},
    ],
}


def test_a_run_prints_one_json_object_and_nothing_else() -> None:
    command = [sys.executable, "-m", "hedgerow", "bench", "table", "--quick", "--json"]
    choice = ["--rounds", "1", "--threads", "1", "--peers", "nn.Embedding(sparse),gather"]
    cases = ["--cases", "W1 lookup,W1 lookup+SGD,memory,insert calls"]
    done = subprocess.run([*command, *choice, *cases], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no terminal, no progress
    report = json.loads(done.stdout)
    assert list(report) == ["bench", "work", "versions", "results"]
    assert report["bench"] == "table"
    assert report["work"]["threads"] == 1
    assert report["work"]["W1"]["dim"] == 16
    assert {"hedgerow", "torch", "numpy"} <= set(report["versions"])
    lookup, update, small, large, calls = report["results"]
    _check_comparison(lookup, "W1 lookup", "reused", "gather")
    _check_comparison(update, "W1 lookup+SGD", "fresh", "nn.Embedding(sparse)")
    assert small["case"] == large["case"] == "memory"
    assert small["rows"] < large["rows"]
    for result in (small, large):
        assert 8 < result["bytes_a_row"] <= result["bytes_a_row_with_slack"]
    assert calls["case"] == "insert calls"
    assert calls["slowest_ms"] >= calls["median_ms"] > 0


def _check_comparison(result: dict[str, Any], case: str, output: str, peer: str) -> None:
    assert (result["case"], result["output"], result["peer"]) == (case, output, peer)
    assert result["equal"] is True
    assert result["ours_ms"] > 0
    assert result["peer_ms"] > 0
    assert result["ratio"] > 0


def test_the_report_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show_table_bench(REPORT)
    shown = capsys.readouterr().out
    for text in (
        "threads W2 lookup+Adagrad uniform",
        "nn.Embedding(sparse)",
        "12345.678",
        "NO",
        "TBE: missing: no [environment]",
        "EBC: error: ended with status 1",
        "insert calls: rows 9, slowest_over_median 3.5",
    ):
        assert text in shown


def test_results_that_differ_end_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import table
    from hedgerow.cli.app import main

    result = {"case": "W1 lookup", "peer": "TBE", "equal": False}
    monkeypatch.setattr(table, "run", lambda *_: {"results": [result]})
    monkeypatch.setattr(sys, "argv", ["hedgerow", "bench", "table", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["results"] == [result]
    assert err == "hedgerow: results differ: W1 lookup of TBE\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cases", "W9 lookup"), "unknown case 'W9 lookup'; known: "),
        (("--peers", "TBF"), "Did you mean 'TBE'?"),
        (("--threads", "0"), "threads is 0; it must lie in 1..1024"),
        (("--rounds", "0"), "rounds is 0"),
        (("--cases", "W1 growing insert", "--peers", "nn.Embedding"), "has one of the peers"),
    ],
)
def test_a_bad_value_is_one_line_on_stderr_and_status_2(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from hedgerow.cli.app import main

    monkeypatch.setattr(sys, "argv", ["hedgerow", "bench", "table", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hedgerow: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize("arguments", [["table"], ["--help"], ["no-such"], []])
def test_without_a_checkout_it_says_where_benchmarks_run(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from hedgerow.cli import bench
    from hedgerow.cli.app import main

    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["hedgerow", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "hedgerow: benchmarks are not part of the installed package; run `hedgerow bench` from a "
        "checkout of the repository.\n"
    )
