"""What plans say of a step is compared with what it took, and told where it is off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_predict
from benchmarks.gpu_tiers import stores
from hedgerow.calibration.power_law import Batches, PowerLawWork
from hedgerow.core.errors import InputError
from hedgerow.planner.times.calibration import Calibration
from hedgerow.planner.times.step_time import HostCost, ModeCost, TimeParameters

MODES = ("HBM_ONLY", "HYBRID", "CACHING", "HOST_ONLY")


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    cost = ModeCost(0.5, 1e-6, table_ms=0.01, host=HostCost(0.0, 1e-4, 1e7))
    costs = TimeParameters(modes=dict.fromkeys(MODES, cost), promotion=0.8)
    path = tmp_path / "calibration.json"
    Calibration(device="test", parameters=costs).save(path)
    return path


def _lines(calibration: Path) -> dict[str, dict[str, float]]:
    known = Calibration.load(calibration)
    return {case: gpu_predict.planned(known, PowerLawWork(), case) for case in gpu_predict.CASES}


def test_plans_of_all_modes(calibration: Path) -> None:
    said = _lines(calibration)
    keys = {case: line["planned_host_keys"] for case, line in said.items()}
    assert keys["HBM_ONLY"] == 0 < keys["CACHING@0.8"] < keys["HYBRID@0.1"] < keys["HOST_ONLY"]
    times = [said[case]["planned_ms"] for case in ("HBM_ONLY", "CACHING@0.8", "HOST_ONLY")]
    assert 0.6 < times[0] < times[1] < times[2]  # a launch of ten tables, and their keys


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.2, 0), (1.5, 1), (0.7, 1)])
def test_a_time_that_is_off_is_told(
    calibration: Path,
    tmp_path: Path,
    factor: float,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = {case: line["planned_ms"] for case, line in _lines(calibration).items()}
    times["HYBRID@0.1"] *= factor
    path = tmp_path / "measured.json"
    lines = [{"case": case, "ms": ms} for case, ms in times.items()]
    path.write_text(json.dumps({"results": lines}))
    assert gpu_predict.main([str(calibration), "--measured", str(path)]) == status
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["case"] for line in told] == list(gpu_predict.CASES)
    assert [line["within"] for line in told] == [True, not status, True, True]
    assert told[1]["ratio"] == pytest.approx(1 / factor, abs=1e-3)


def test_a_case_that_is_none_is_refused(calibration: Path) -> None:
    with pytest.raises(InputError, match=r"CACHING@0\.8"):
        gpu_predict.main([str(calibration), "--cases", "CACHING@0.5"])


@pytest.mark.long
def test_all_modes_are_measured(
    calibration: Path, device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--quick", "--rounds", "1", "--device", str(device)]
    assert gpu_predict.main([str(calibration), *given]) in (0, 1)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["case"] for line in told] == list(gpu_predict.CASES)
    assert all(line["measured_ms"] > 0 for line in told)
    assert told[1]["measured_host_keys"] > 0


def test_a_cache_of_old_has_changed_rows(device: torch.device) -> None:
    batches = Batches(PowerLawWork.quick(), device)
    store = stores()["CACHING@0.8"](batches)
    for table in store.tables:  # as training leaves them: whatever goes is written back
        held = int(table.stats()["fast_rows"])
        assert held > 0
        assert len(table.resident.dirty()) == held
