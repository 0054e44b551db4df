"""Rounds of a point: the faster half counts, and passes that differ are taken again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hedgerow.calibration import gpu, rounds
from hedgerow.calibration.gpu import Size, points_of
from hedgerow.calibration.quiet import Yardstick
from hedgerow.calibration.rounds import Pace, Round, What, is_doubtful, rounds_of, spread, summed_up
from hedgerow.calibration.sweeps import Filled, Sweep


class _Quiet(Yardstick):
    """Finds every core quiet, so that no round is taken again while other tests run."""

    def is_quiet(self) -> bool:
        return True


def _rounds(*times: float) -> list[Round]:
    return [Round(ms, 10 * ms, ms / 2) for ms in times]


def test_a_disturbed_pass_does_not_count() -> None:
    quiet, disturbed = _rounds(1.0, 1.1, 1.2), _rounds(2.0, 3.0, 1.9)
    found = summed_up([disturbed, quiet])
    assert found.ms == pytest.approx(1.1)
    assert (found.missed, found.moved) == (pytest.approx(11.0), pytest.approx(0.55))


def test_rounds_that_were_disturbed_count_only_if_there_are_no_others() -> None:
    loud = [replace(one, quiet=False) for one in _rounds(0.5, 0.6)]
    assert summed_up([loud, _rounds(1.0)]) == Round(1.0, 10.0, 0.5)
    assert summed_up([loud]) == Round(0.5, 5.0, 0.25, quiet=False)
    assert is_doubtful([loud, loud])


def test_passes_that_differ_are_doubtful_until_two_agree() -> None:
    assert not is_doubtful([_rounds(1.0)])
    assert is_doubtful([_rounds(1.0), _rounds(1.4)])
    assert not is_doubtful([_rounds(1.0), _rounds(1.4), _rounds(1.05)])
    assert spread([_rounds(1.0), _rounds(1.4), _rounds(1.05)]) == pytest.approx(0.05)
    # Within a pass, too, the slower half does not count.
    assert not is_doubtful([_rounds(1.0, 5.0), _rounds(1.05, 1.1, 9.0)])


def _hybrid(device: torch.device, tables: int = 1) -> Filled:
    sweep = Sweep(mode="HYBRID", dim=4, keys=(16,), tables=tables, factor=0.25, shares=(0.0, 0.5))
    return Filled(sweep, 512 // tables, device, tries=32)


def test_rows_that_a_hybrid_promotes_are_counted(device: torch.device) -> None:
    filled = _hybrid(device)
    before = filled.counted()
    pace = Pace(warm_ups=1, steps=2, settles=0, seconds=1e-9)
    found = rounds_of(filled, What(16, 0.5, 1), pace, _Quiet())
    assert len(found) == 1  # there is no time for more, nor for a second step
    assert all(one.ms > 0 and one.missed == 8 for one in found)
    missed, moved = filled.counted()
    assert missed - before[0] == 8 * (1 + 1)
    assert moved >= before[1] > 100  # as many as there are places, when it was filled
    assert Filled(replace(filled.sweep, mode="HOST_ONLY"), 64, device, tries=0).counted() == (0, 0)


@pytest.mark.parametrize("mode", ["HYBRID", "CACHING"])
def test_hot_rows_come_back(mode: str, device: torch.device) -> None:
    def missed(*, refreshed: bool) -> int:
        filled = Filled(Sweep(mode=mode, dim=4, keys=(16,), factor=0.25), 512, device, tries=32)
        for keys in filled._chunks(256, 512, 64):  # others, until hot rows have left for them
            for _ in range(8):
                filled.step(keys, filled.grads(keys))
        if refreshed:
            filled.refresh()
        before = filled.counted()[0]
        for keys in filled._chunks(0, filled.hot, 16):
            filled.step(keys, filled.grads(keys))
        return filled.counted()[0] - before

    assert missed(refreshed=True) < missed(refreshed=False) / 2


def test_steps_settle_before_they_are_timed(device: torch.device) -> None:
    sweep = Sweep(mode="CACHING", dim=4, keys=(16,), factor=0.25)
    filled = Filled(sweep, 512, device, tries=32)
    for keys in filled._chunks(256, 512, 64):
        filled.step(keys, filled.grads(keys))
    pace = Pace(warm_ups=1, steps=2, settles=32, seconds=1e-9)
    found = rounds_of(filled, What(16, 0.0, 1), pace, _Quiet())
    assert [one.missed for one in found] == [0.0]


def test_what_takes_too_long_is_left_out(device: torch.device) -> None:
    sweep = Sweep(mode="HOST_ONLY", dim=4, keys=(16, 32))
    filled = Filled(sweep, 128, device, tries=0)
    pace = Pace(warm_ups=1, steps=8, settles=0, seconds=1e-9)
    assert rounds_of(filled, What(32, 0.0, 1), pace, _Quiet()) == []
    assert len(rounds_of(filled, What(16, 0.0, 1), pace, _Quiet())) == 1  # the least is taken
    patient = replace(pace, seconds=60.0)
    assert len(rounds_of(filled, What(32, 0.0, 1), patient, _Quiet())) == 12


def test_a_sweep_is_measured_in_passes(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {16: iter([1.0, 1.5, 1.01]), 32: iter([2.0, 2.1])}
    asked = []

    def told(filled: Filled, what: What, pace: Pace, yardstick: Yardstick) -> list[Round]:
        asked.append(what.keys)
        return _rounds(next(times[what.keys]))

    monkeypatch.setattr(gpu, "rounds_of", told)
    monkeypatch.setattr(rounds, "_APART", 0.1)
    size = Size.quick()
    own = next(one for one in size.sweeps if (one.mode, one.tables) == ("HOST_ONLY", 1))
    found = points_of(
        device, 1.0, lambda *_: None, replace(size, sweeps=(own,), passes=2, copies=())
    )
    steps = [point for point in found if point.kind == "step"]
    assert asked == [16, 32, 16, 32, 16]
    assert [point.ms for point in steps] == [pytest.approx(1.005), 2.0]
    assert [point.seen.spread for point in steps] == [pytest.approx(0.01), pytest.approx(0.05)]


def test_steps_that_were_disturbed_are_measured_once_more(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def told(filled: Filled, what: What, pace: Pace, yardstick: Yardstick) -> list[Round]:
        asked.append(what.keys)
        loud = what.keys == 32 and asked.count(32) < 4
        return [Round(2.0 if loud else 1.0, 0.0, 0.0, quiet=not loud)]

    monkeypatch.setattr(gpu, "rounds_of", told)
    size = Size.quick()
    own = next(one for one in size.sweeps if (one.mode, one.tables) == ("HOST_ONLY", 1))
    found = points_of(device, 1.0, lambda *_: None, replace(size, sweeps=(own,), copies=()))
    steps = [point for point in found if point.kind == "step"]
    assert asked == [16, 32, 32, 32, 32]
    assert [(point.ms, point.seen.quiet) for point in steps] == [(1.0, True), (1.0, True)]
