"""Steps of every mode are measured with keys where they are wanted: small ones without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hedgerow.calibration.gpu import Size, points_of
from hedgerow.calibration.sweeps import Filled, Sweep
from hedgerow.planner.times import step_time
from hedgerow.planner.times.calibrate import fit
from hedgerow.planner.times.calibration import Point
from hedgerow.tiers import eviction, hybrid


def _quiet(text: str, done: int, total: int) -> None:
    assert text
    assert 0 <= done <= total


def _points(device: torch.device, *modes: str) -> list[Point]:
    size = Size.quick()
    kept = tuple(sweep for sweep in size.sweeps if not modes or sweep.mode in modes)
    return list(points_of(device, 300.0, _quiet, replace(size, sweeps=kept)))


def test_a_batch_has_the_keys_that_are_wanted(device: torch.device) -> None:
    sweep = Sweep(mode="HOST_ONLY", dim=4, keys=(64,), tables=2)
    filled = Filled(sweep, 100, device, tries=1)
    assert filled.fits(100)
    assert not filled.fits(102)
    seen = set[int]()
    for _ in range(4):  # 32 rows of each table at a time: all take turns
        keys = filled.batch(64, 0.0, 3)
        first, second = keys.ids[:96].tolist(), keys.ids[96:].tolist()
        assert keys.splits == (0, 96, 192)
        assert len(set(first)) == len(set(second)) == 32
        assert not set(first) & set(second)
        assert bool(filled.store.contains(keys).all())
        seen |= set(first)
    assert len(seen) == 100


def test_rows_of_a_hybrid_lie_on_the_host_and_cost_more_there(device: torch.device) -> None:
    found = _points(device, "HYBRID", "HOST_ONLY")
    assert {point.kind for point in found} == {"copy", "step", "hits"}
    steps = [point for point in found if point.kind == "step"]
    assert {point.tables for point in steps} == {1, 2}
    assert {point.ids // point.keys for point in steps} == {1, 2}
    assert {p.host_share for p in steps if p.mode == "HOST_ONLY"} == {1.0}
    assert all(0 <= point.host_share <= 1 for point in steps)
    parameters = fit(found, "test").parameters
    assert set(parameters.modes) == {"HOST_ONLY", "HYBRID"}
    assert all(cost.together for cost in parameters.modes.values())
    assert parameters.promotion is not None


@pytest.mark.long
def test_all_modes(device: torch.device) -> None:
    found = _points(device)
    modes = {"HBM_ONLY", "HYBRID", "CACHING", "HOST_ONLY"}
    assert {p.mode for p in found if p.kind == "step"} == modes
    assert {"find", "lookup", "update"} <= {point.kind for point in found}
    cached = [p for p in found if p.kind == "step" and p.mode == "CACHING"]
    # A cache has the rows that stay, and none of those that take turns.
    shares = sorted(p.host_share for p in cached)
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(0.5, abs=0.05)
    assert set(fit(found, "test").parameters.modes) == modes


def test_a_whole_sweep_has_what_a_calibration_needs() -> None:
    sweeps = Size.whole().sweeps
    for mode in ("HYBRID", "CACHING"):
        own = [sweep for sweep in sweeps if sweep.mode == mode]
        assert len({sweep.factor for sweep in own}) == 3
        assert {0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0} == set(own[0].shares)
    for mode in ("HBM_ONLY", "HYBRID", "CACHING", "HOST_ONLY"):
        own = [sweep for sweep in sweeps if sweep.mode == mode]
        assert {sweep.tables for sweep in own} == {1, 10}
        assert {repeat for sweep in own for repeat in sweep.repeats} == {1, 3}
    dims = {sweep.dim for sweep in sweeps if sweep.mode == "HBM_ONLY"}
    assert dims == {16, 32, 64, 128, 256}


def test_plans_know_how_often_rows_move() -> None:
    ours = (step_time.SPARE, step_time.STEPS_SPARE, step_time.MOST_SPARE)
    assert ours == (eviction._SPARE, eviction.STEPS_SPARE, eviction.MOST_SPARE)
    theirs = (hybrid.MOVE_STEPS, hybrid._SOON_STEPS, hybrid._MANY)
    assert theirs == (step_time.MOVE_STEPS, step_time.SOON_STEPS, step_time.MANY)
