"""`hedgerow calibrate`: measures this machine, and writes a file that plans can be made with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hedgerow.bench.calibrate import measure
from hedgerow.cli import app as program
from hedgerow.core.errors import InputError, NotSupportedError
from hedgerow.planner.problem.table_spec import TableSpec
from hedgerow.planner.problem.topology import Topology
from hedgerow.planner.problem.variant import HOST_ONLY
from hedgerow.planner.times.calibration import Calibration
from hedgerow.planner.times.time_model import expected


def _quiet(text: str, done: int, total: int) -> None:
    assert text
    assert 0 <= done <= total


def test_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    arguments = ["calibrate", "--seconds", "1.5", "--out", str(path)]
    result = CliRunner().invoke(program.app, arguments, catch_exceptions=False)
    assert f"wrote {path}" in result.stdout
    calibration = Calibration.load(path)
    errors = calibration.residuals
    assert errors is not None
    assert all(math.isfinite(value) for value in (errors.median, errors.p90, errors.worst))
    assert {"step", "lookup", "update", "copy"} == {point.kind for point in calibration.points}
    assert len({point.dim for point in calibration.points if point.kind == "step"}) > 1
    world = Topology(world=1, ddr_per_machine=2**34, device="cpu")
    spec = TableSpec(name="item", rows=10**6, dim=32)
    small, large = (
        expected(spec, HOST_ONLY, world, calibration, batch).ms for batch in (1024, 65_536)
    )
    assert 0 < small < large


def test_json_is_the_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    arguments = ["calibrate", "--seconds", "0.5", "--out", str(path), "--json"]
    result = CliRunner().invoke(program.app, arguments, catch_exceptions=False)
    assert json.loads(result.stdout) == json.loads(path.read_text())


def test_cards_are_refused_and_said_why() -> None:
    with pytest.raises(NotSupportedError, match=r"Calibration\.default"):
        measure("cuda", 1.0, _quiet)
    for seconds in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(InputError, match="seconds"):
            measure("cpu", seconds, _quiet)
