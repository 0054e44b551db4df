"""What the model makes of steps that were measured on real GPUs: H200s, on 2026-11-18."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from benchmarks.gpu_predict import CASES, WITHIN, planned
from hedgerow.calibration.power_law import PowerLawWork
from hedgerow.planner.times.calibrate import CalibrationFit, fit
from hedgerow.planner.times.calibration import Calibration

MEASURED = Path(__file__).parent / "measured"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Points of a calibration, and steps that `gpu_tiers` took on another machine, in ms."""

    points: str
    steps: int
    median: float  # by which half of them may be off
    took_ms: tuple[float, ...]  # in the order of CASES


SWEEPS = (
    # HBM_ONLY and CACHING of one machine, HOST_ONLY and HYBRID of another.
    Sweep("h200.json", 251, 0.04, (0.779, 19.884, 2.128, 69.274)),
    # A whole sweep of one machine.
    Sweep("h200_whole.json", 287, 0.05, (0.783, 19.362, 2.217, 64.257)),
)


@cache
def _fitted(sweep: Sweep) -> CalibrationFit:
    known = Calibration.load(MEASURED / sweep.points)
    assert sum(point.kind == "step" for point in known.points) == sweep.steps
    return fit(known.points, known.device)


@pytest.mark.xdist_group("fits")  # it takes seconds
@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.points)
def test_measured_steps_are_explained(sweep: Sweep) -> None:
    residuals = _fitted(sweep).residuals
    assert residuals.median <= sweep.median
    assert residuals.p90 <= 0.15


@pytest.mark.xdist_group("fits")
@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.points)
@pytest.mark.parametrize("case", CASES)
def test_a_plan_tells_how_long_a_step_takes(case: str, sweep: Sweep) -> None:
    known = Calibration(device="H200", parameters=_fitted(sweep).parameters)
    told = planned(known, PowerLawWork(), case)
    took_ms = sweep.took_ms[CASES.index(case)]
    assert told["planned_ms"] == pytest.approx(took_ms, rel=WITHIN)
