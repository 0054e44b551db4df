"""What the model makes of steps that were measured on real GPUs: H200s, on 2026-11-18."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from hedgerow.bench.gpu_predict import CASES, WITHIN, planned
from hedgerow.bench.gpu_tiers import Work
from hedgerow.planner.times.calibrate import Fit, fit
from hedgerow.planner.times.calibration import Calibration

# A whole sweep, of one machine.
POINTS = Path(__file__).parent / "measured" / "h200.json"
# Measured by `gpu_tiers` on another.
STEPS_MS = {"HBM_ONLY": 0.783, "HYBRID@0.1": 19.362, "CACHING@0.8": 2.217, "HOST_ONLY": 64.257}


@cache
def _fitted() -> Fit:
    known = Calibration.load(POINTS)
    assert sum(point.kind == "step" for point in known.points) == 287
    return fit(known.points, known.device)


@pytest.mark.xdist_group("fits")  # it takes seconds
def test_measured_steps_are_explained() -> None:
    residuals = _fitted().residuals
    assert residuals.median <= 0.05
    assert residuals.p90 <= 0.15


@pytest.mark.xdist_group("fits")
@pytest.mark.parametrize("case", CASES)
def test_a_plan_tells_how_long_a_step_takes(case: str) -> None:
    known = Calibration(device="H200", parameters=_fitted().parameters)
    told = planned(known, Work(), case)
    assert told["planned_ms"] == pytest.approx(STEPS_MS[case], rel=WITHIN)
