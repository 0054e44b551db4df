"""`hedgerow calibrate`: measures this machine, and writes a file that plans can be made with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hedgerow.calibration.calibrate import measure
from hedgerow.cli import app as program
from hedgerow.core.errors import ConfigError, HedgerowError, InputError
from hedgerow.planner.problem.options import HOST_ONLY
from hedgerow.planner.problem.table_spec import TableSpec
from hedgerow.planner.problem.topology import Topology
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


def test_points_are_fitted_anew(tmp_path: Path) -> None:
    point = {"kind": "step", "mode": "CPU", "read_bytes": 64.0, "write_bytes": 0.0}
    times = [{**point, "keys": n, "ms": 0.25 + 1e-3 * n} for n in (10, 1000, 100_000)]
    costs = {"modes": {}, "memories": {}, "links": {}, "overlap": 1.0}
    known = Calibration.default("cpu").to_dict() | {"points": times, "parameters": costs}
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(known))
    arguments = ["calibrate", "--points", str(old), "-o", str(new)]
    result = CliRunner().invoke(program.app, arguments, catch_exceptions=False)
    assert "CPU: 0.2500 ms a step" in result.stdout
    fitted = Calibration.load(new)
    assert fitted.measured
    assert [point.ms for point in fitted.points] == [line["ms"] for line in times]


def test_what_cannot_be_measured_is_refused_and_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cuda:", "gpu", "cuda:x", "", "cpu:0"):
        with pytest.raises(InputError, match="cuda:N"):
            measure(device, 1.0, _quiet)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no GPU"):
        measure("cuda", 1.0, _quiet)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="cuda:1"):
        measure("cuda:2", 1.0, _quiet)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**40))
    with pytest.raises(InputError, match=r"1\.00? GiB of HBM are free"):
        measure("cuda:1", 1.0, _quiet)
    for seconds in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(InputError, match="seconds"):
            measure("cpu", seconds, _quiet)


def test_where_nothing_can_be_written_nothing_is_measured(tmp_path: Path) -> None:
    for out, told in ((tmp_path / "none" / "c.json", "there is no folder"), ("s3://b/c", "a URL")):
        result = CliRunner().invoke(program.app, ["calibrate", "--out", str(out)])
        assert isinstance(result.exception, HedgerowError)
        assert told in str(result.exception)
