"""`hedgerow bench sync` as a user runs it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import sync
from benchmarks.show import show_sync
from hedgerow.cli.app import app


def test_a_run_prints_one_json_object_with_equal_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sync, "_DIMS", (16,))
    done = CliRunner().invoke(app, ["bench", "sync", "--json", "--quick", "--rounds", "1"])
    if done.exception is not None:
        raise done.exception
    report = json.loads(done.stdout)
    assert report["bench"] == "sync"
    assert [row["peer"] for row in report["results"]] == ["grpcio sink", "grpcio echo"]
    for row in report["results"]:
        assert row["equal"] is True
        assert row["ratio"] == pytest.approx(
            row["ours_rows_per_s"] / row["peer_rows_per_s"], rel=0.05
        )
        assert row["sent_bytes"] > 20_000 * 72
    show_sync(report)
    assert "20,000 rows x 16" in capsys.readouterr().out
