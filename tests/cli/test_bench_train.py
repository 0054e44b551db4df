"""`hedgerow bench train` as a user runs it."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from benchmarks import train
from benchmarks.train import TrainSizes
from hedgerow.cli.app import app, main

SMALL = TrainSizes(features=2, rows=3_000, dim=4, samples=64, batches=2)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "QUICK", SMALL)


def _run(*arguments: str) -> str:
    choice = ["--quick", "--rounds", "1", "--threads", "1", "--peers", "nn.*"]
    done = CliRunner().invoke(app, ["bench", "train", *choice, *arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_a_run_prints_one_json_object_with_equal_results() -> None:
    report = json.loads(_run("--json"))
    assert report["bench"] == "train"
    assert (report["work"]["threads"], report["work"]["samples"]) == (1, SMALL.samples)
    (result,) = report["results"]
    assert (result["case"], result["peer"]) == ("DLRM 2 features", "nn.EmbeddingBag(sparse)")
    assert result["equal"] is True
    assert result["ratio"] == pytest.approx(result["peer_ms"] / result["ours_ms"], rel=0.05)


def test_a_terminal_is_told_samples_per_second() -> None:
    shown = _run()
    assert "DLRM 2 features" in shown
    assert "nn.EmbeddingBag(sparse)" in shown
    assert "samples/s" in shown


def test_an_unknown_peer_is_one_line_on_stderr_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hedgerow", "bench", "train", "--peers", "EBC fusd"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "Did you mean 'EBC fused'?" in capsys.readouterr().err
