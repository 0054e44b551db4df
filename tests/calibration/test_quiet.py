"""Measurements count that were taken while nobody else used the core."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from hedgerow.calibration import quiet
from hedgerow.calibration.quiet import Cores


class Told(quiet.Yardstick):
    """Says what it is told."""

    def __init__(self, answers: Iterator[bool]) -> None:
        self._answers, self.patience_s = answers, 9.0

    def is_quiet(self) -> bool:
        return next(self._answers)

    def settle(self) -> bool:
        return self.is_quiet()

    def leave(self) -> None:
        pass


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


class _Slow:
    """Cores of which some have half their speed."""

    def __init__(self, slow: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.slow, self.here, self.moves = slow, 0, 0
        monkeypatch.setattr(quiet, "_once", lambda: 2.0 if self.here in self.slow else 1.0)
        monkeypatch.setattr(Cores, "__iter__", lambda _: iter(range(4)))
        monkeypatch.setattr(Cores, "settle", lambda _, core: self._go(core))
        monkeypatch.setattr(Cores, "leave", lambda _: self._go(0))
        monkeypatch.setattr(Cores, "free_others", lambda _: None)

    def _go(self, core: int) -> None:
        self.here, self.moves = core, self.moves + 1


def test_it_measures_on_a_core_that_nobody_slows_down(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = _Slow(set(), monkeypatch)
    yardstick = quiet.Yardstick()
    cores.slow = {0, 1, 3}
    found = quiet.measured(lambda: cores.here, 3, yardstick)
    assert found == quiet.Measured([2, 2, 2], quiet=True)
    assert cores.here == 0  # others may run it anywhere afterwards
    cores.moves, cores.slow = 0, {1, 2, 3}
    assert yardstick.settle()
    assert cores.moves == 0  # it stays where it is well


def test_where_every_core_is_slow_it_measures_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = _Slow(set(), monkeypatch)
    yardstick = quiet.Yardstick()
    cores.slow, yardstick.patience_s = {0, 1, 2, 3}, 0.0
    assert quiet.measured(lambda: cores.here, 2, yardstick) == quiet.Measured([0, 0], quiet=False)


def test_it_listens_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = _Slow({0, 1, 2}, monkeypatch)
    yardstick = quiet.Yardstick(0.001)
    cores.here = 0
    assert not yardstick.is_quiet()


def test_a_measurement_that_breaks_off_lets_the_thread_go(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = _Slow(set(), monkeypatch)
    yardstick = quiet.Yardstick()
    cores.slow = {0}

    def breaks() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quiet.measured(breaks, 1, yardstick)
    assert cores.here == 0


needs_cores = pytest.mark.skipif(
    not list(Cores()), reason="threads may not choose where they run here"
)


@needs_cores
def test_threads_that_start_meanwhile_run_anywhere() -> None:
    cores, before, done = Cores(), os.sched_getaffinity(0), threading.Event()
    first, last = min(before), max(before)
    assert sorted(cores) == sorted(before)
    threads = [threading.Thread(target=done.wait) for _ in range(3)]
    try:
        threads[0].start()
        os.sched_setaffinity(threads[0].native_id or 0, {first})  # somebody wants it there
        cores.settle(last)
        assert os.sched_getaffinity(0) == {last}
        assert next(iter(cores)) == last
        for thread in threads[1:]:
            thread.start()
            assert os.sched_getaffinity(thread.native_id or 0) == {last}
            cores.free_others()
            assert os.sched_getaffinity(thread.native_id or 0) == before
        assert os.sched_getaffinity(0) == {last}
        cores.settle(first)
        assert os.sched_getaffinity(0) == {first}
    finally:
        cores.leave()
        done.set()
    assert os.sched_getaffinity(threads[0].native_id or 0) == {first}
    for thread in threads:
        thread.join()
    assert os.sched_getaffinity(0) == before


@needs_cores
def test_where_threads_may_not_choose_there_are_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    assert list(Cores()) == []
    assert set(quiet.measured(lambda: 1.0, 2, quiet.Yardstick(0.001)).values) == {1.0}
