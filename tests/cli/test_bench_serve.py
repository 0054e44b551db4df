"""`hedgerow bench serve` as a user runs it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import serve
from benchmarks.show import show_serve
from hedgerow.cli.app import app


def test_a_run_prints_one_json_object_with_equal_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "CLIENTS", (1, 3))
    done = CliRunner().invoke(app, ["bench", "serve", "--json", "--quick", "--rounds", "1"])
    if done.exception is not None:
        raise done.exception
    report = json.loads(done.stdout)
    assert report["bench"] == "serve"
    assert [row["case"] for row in report["results"]] == [
        "raw_lookup 1,000 x 16, 1 clients",
        "raw_lookup 1,000 x 16, 3 clients",
        "DLRM entry, 64 samples, 1 clients",
        "DLRM entry, 64 samples, 3 clients",
    ]
    for row in report["results"]:
        assert row["equal"] is True
        assert row["peer"] == "grpcio echo"
        assert row["ratio"] == pytest.approx(row["ours_rps"] / row["peer_rps"], rel=0.05)
        assert row["ours_p99_ms"] >= row["ours_ms"] > 0
        assert row["response_bytes"] > (64_000 if "raw_lookup" in row["case"] else 64 * 4)
    show_serve(report)
    assert "raw_lookup" in capsys.readouterr().out
