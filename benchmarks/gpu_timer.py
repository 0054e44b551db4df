"""Times of work on a GPU: by its own events with a cold cache, and by the clock on the wall."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another library's way to the same work, or why it cannot be had."""

    name: str
    run: Work | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A call and the bytes that it cannot avoid: everything it touches, once.

    `items` are the keys or vectors of a call. `equal` compares a result with that of the plain
    twin. `by_torch` is torch's own way to the same result. `restore` puts back what a call changes,
    outside the time. With `in_a_row`, so many calls are also measured one after the other, by the
    wall clock: what a training loop gets. `missing` says why the case cannot run.
    """

    name: str
    moved_bytes: int
    run: Work
    items: int = 0
    equal: Callable[[], bool] | None = None
    by_torch: Work | None = None
    restore: Work | None = None
    peer: Peer | None = None
    in_a_row: int = 0
    missing: str | None = None


COPY_BYTES_PER_S = 4.3e12  # a large copy on one H200, bytes read and written
_L2_BYTES = 256 << 20  # several times the cache of any card
_WARM_UPS = 3
# The GPU idles about 2 ms before each call, so that the host gets ahead: events measure the GPU
# alone, and the wall clock what the host adds.
_AHEAD_CYCLES = 4_000_000


@dataclass(frozen=True, slots=True)
class Times:
    """Medians of one call."""

    events_ms: float
    wall_ms: float


class Timer:
    """Measures calls on one device; on the CPU, where kernels are interpreted, by the clock alone.

    >>> Timer(torch.device("cpu"), 1).times(lambda: None).wall_ms < 1000
    True
    """

    def __init__(self, device: torch.device, rounds: int) -> None:
        self.device, self.rounds = device, rounds
        cold = _L2_BYTES if device.type == "cuda" else 1
        self._flush = torch.empty(cold, dtype=torch.int8, device=device)

    def times(self, run: Work, restore: Work | None = None) -> Times:
        """The median of a call by events and by the wall clock."""
        if self.device.type != "cuda":
            spent = self._by_wall(run, restore, 1)
            return Times(spent, spent)
        for _ in range(_WARM_UPS):
            self._once(run, restore)
        return Times(self._by_events(run, restore), self._by_wall(run, restore, self.rounds))

    def in_a_row(self, run: Work, calls: int) -> float:
        """The wall clock of one of `calls` calls that follow each other; the median of five turns.

        >>> Timer(torch.device("cpu"), 1).in_a_row(lambda: None, 3) < 1000
        True
        """
        spent, turns = [], 1 if self.device.type != "cuda" else 5
        for _ in range(turns):
            self._wait()
            begun = time.perf_counter()
            for _ in range(calls):
                run()
            self._wait()
            spent.append(1e3 * (time.perf_counter() - begun) / calls)
        return statistics.median(spent)

    def _once(self, run: Work, restore: Work | None) -> None:
        if restore is not None:
            restore()
        run()

    def _by_events(self, run: Work, restore: Work | None) -> float:
        marks = []
        for _ in range(self.rounds):
            if restore is not None:
                restore()
            self._flush.zero_()
            torch.cuda._sleep(_AHEAD_CYCLES)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            marks.append((begin, end))
        torch.cuda.synchronize(self.device)
        return statistics.median(begin.elapsed_time(end) for begin, end in marks)

    def _by_wall(self, run: Work, restore: Work | None, rounds: int) -> float:
        spent = []
        for _ in range(rounds):
            if restore is not None:
                restore()
            self._flush.zero_()
            self._wait()
            begun = time.perf_counter()
            run()
            self._wait()
            spent.append(1e3 * (time.perf_counter() - begun))
        return statistics.median(spent)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def copy_rate(timer: Timer) -> float:
    """TB/s of a large copy, bytes read and written: what this card can do."""
    if timer.device.type != "cuda":
        return 0.0
    source = torch.empty(1 << 30, dtype=torch.int8, device=timer.device)
    target = torch.empty_like(source)
    spent_ms = timer.times(lambda: target.copy_(source)).events_ms
    return round(2 * len(source) / spent_ms / 1e9, 3)
