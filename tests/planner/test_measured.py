"""What the model makes of steps that were measured on a real GPU: an H200, on 2026-11-18."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from hedgerow.bench.gpu_predict import CASES, WITHIN, planned
from hedgerow.bench.gpu_tiers import Work
from hedgerow.planner.times.calibrate import Fit, fit
from hedgerow.planner.times.calibration import Calibration

FOLDER = Path(__file__).parent / "measured"
# Measured by `gpu_predict` on the machine of the second file, minutes after its calibration.
STEPS_MS = {"HBM_ONLY": 0.79, "HYBRID@0.1": 18.5523, "CACHING@0.8": 2.4138, "HOST_ONLY": 68.8896}


@cache
def _fitted(name: str) -> Fit:
    known = Calibration.load(FOLDER / f"{name}.json")
    assert sum(point.kind == "step" for point in known.points) == 287
    return fit(known.points, known.device)


@pytest.mark.xdist_group("fits")  # each takes seconds
@pytest.mark.parametrize(
    ("name", "median", "p90"), [("h200_quiet", 0.065, 0.175), ("h200_with_plans", 0.08, 0.225)]
)
def test_measured_steps_are_explained(name: str, median: float, p90: float) -> None:
    residuals = _fitted(name).residuals
    assert residuals.median <= median
    assert residuals.p90 <= p90


@pytest.mark.xdist_group("fits")
@pytest.mark.parametrize("case", CASES)
def test_a_plan_tells_how_long_a_step_takes(case: str) -> None:
    known = Calibration(device="H200", parameters=_fitted("h200_with_plans").parameters)
    told = planned(known, Work(), case)
    assert told["planned_ms"] == pytest.approx(STEPS_MS[case], rel=WITHIN)
