"""Measurements count that were taken while nobody else used the core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hedgerow.bench import quiet


class Told(quiet.Yardstick):
    """Says what it is told."""

    def __init__(self, answers: Iterator[bool]) -> None:
        self._answers, self.patience_s = answers, 9.0

    def is_quiet(self) -> bool:
        return next(self._answers)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_PAUSE_S", 0.0)


def test_what_was_disturbed_before_or_after_is_left_out() -> None:
    # Asked before each; after it only if it was quiet before.
    answers = iter([False, True, False, True, True, True, True])
    values = iter([1.0, 2.0, 3.0, 4.0])
    found = quiet.measured(lambda: next(values), 2, Told(answers))
    assert found == quiet.Measured([3.0, 4.0], quiet=True)


def test_where_it_is_never_quiet_all_there_is_counts() -> None:
    values = iter(range(100))
    found = quiet.measured(lambda: float(next(values)), 3, Told(iter([False] * 100)), tries=2)
    assert found == quiet.Measured([0.0, 1.0, 2.0], quiet=False)
    assert next(values) == 6


def test_nobody_waits_longer_than_the_patience() -> None:
    values, yardstick = iter(range(100)), Told(iter([False] * 100))
    yardstick.patience_s = 0.0
    found = quiet.measured(lambda: float(next(values)), 3, yardstick)
    assert found == quiet.Measured([0.0, 1.0, 2.0], quiet=False)
    assert next(values) == 3


def test_a_yardstick_knows_a_slow_core(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [1.0]
    monkeypatch.setattr(quiet, "_once", lambda: times[0])
    yardstick = quiet.Yardstick()
    for now, expected in ((1.1, True), (1.6, False), (0.5, True), (0.7, False), (0.6, True)):
        times[0] = now
        assert yardstick.is_quiet() is expected
