"""The benchmark of modules: both learn the same, and a module that does not is noticed."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import hedgerow as hr
from benchmarks import modules
from benchmarks.modules import Size, measure
from hedgerow.cli.app import app


def test_the_command_compares_modules_with_torchs_own() -> None:
    run = CliRunner().invoke(app, ["bench", "modules", "--quick", "--rounds", "1", "--json"])
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    assert [one["case"] for one in report["results"]] == [size.case for size in modules.SIZES]
    assert all(one["equal"] and one["ratio"] > 0 for one in report["results"])


def test_rows_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "Sgd", lambda lr: hr.Sgd(lr=2 * lr))
    assert not measure(Size(2, 3), 1, lambda case: None, ids=40)["equal"]
