"""Rounds of steps of a module, taken at several times; the faster half of them counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from .quiet import Yardstick, measured
from .sweeps import Filled

_MOST_ROUNDS = 12  # of a pass
_FEWEST = 2
_LONGEST = 5.0  # a round that takes more than this multiple of a pass's time is left out
_APART = 0.1  # passes that differ by more than this fraction were disturbed
_SETTLED = 0.1  # the excess fraction of keys on the host at which the tiers count as settled


class StepTimer:
    """Times work by device events or by wall clock.

    Steps are timed by wall clock, one after the other as in training, host included. Events leave
    out the time until the host notices the end; they are for single calls on the device.
    """

    def __init__(self, device: torch.device, events: bool) -> None:
        self._device = device
        self._events = events and device.type == "cuda"

    def ms(self, work: Callable[[], object]) -> float:
        """Returns the milliseconds of some work, from an idle device to an idle device."""
        self._wait()
        begun = time.perf_counter()
        if not self._events:
            work()
            self._wait()
            return 1e3 * (time.perf_counter() - begun)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        self._wait()
        return first.elapsed_time(last)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@dataclass(frozen=True, slots=True)
class What:
    """A kind of step: its distinct keys, the share of them on the host, and the ids per key."""

    keys: int
    far: float
    repeat: int


@dataclass(frozen=True, slots=True)
class Round:
    """The means per step: milliseconds, keys on the host, and rows promoted by a hybrid.

    `quiet` is whether the host was quiet before and after it.
    """

    ms: float
    missed: float
    moved: float
    quiet: bool = True


@dataclass(frozen=True, slots=True)
class Pace:
    """How much is measured: warm-ups, steps of a round, steps to settle, seconds."""

    warm_ups: int
    steps: int
    settles: int
    seconds: float


def rounds_of(filled: Filled, what: What, pace: Pace, yardstick: Yardstick) -> list[Round]:
    """Measures one pass; returns no rounds if there is no time for it."""
    sweep = filled.sweep
    clock = StepTimer(filled.device, events=False)
    grads = filled.grads(filled.batch(what.keys, what.far, what.repeat))
    if sweep.tiered:
        _settle(filled, what, grads, pace.settles)
    ready = [filled.batch(what.keys, what.far, what.repeat) for _ in range(pace.warm_ups)]
    once = min(clock.ms(lambda b=batch: filled.step(b, grads)) for batch in ready)
    share = 1e3 * pace.seconds
    # Periodic work is then part of each round; a store on the host has no periodic work.
    count = pace.steps if sweep.mode != "HOST_ONLY" else max(1, pace.steps // 4)
    if count * once > _LONGEST * share:
        count = max(1, count // 4)  # with many keys, periodic work is a small part of a step
        if count * once > _LONGEST * share and what.keys > sweep.keys[0]:
            return []

    def steps() -> Round:
        batches = [filled.batch(what.keys, what.far, what.repeat) for _ in range(count)]
        before = filled.counted()

        def run() -> None:
            for batch in batches:
                filled.step(batch, grads)

        ms = clock.ms(run) / count
        missed, moved = (b - a for a, b in zip(before, filled.counted(), strict=True))
        return Round(ms, missed / count, moved / count)

    fewest = _FEWEST if count * once <= share else 1  # one long round averages its own noise
    rounds = min(_MOST_ROUNDS, max(fewest, int(share / (count * once))))
    found = measured(steps, rounds, yardstick)
    return [replace(one, quiet=found.quiet) for one in found.values]


def _settle(filled: Filled, what: What, grads: torch.Tensor, steps: int) -> None:
    """Runs steps until the number of keys on the host is about the wanted one."""
    every = 4  # steps after which the hot rows of a hybrid are used again
    for _ in range(steps // every):
        before = filled.counted()[0]
        for _ in range(every):
            filled.step(filled.batch(what.keys, what.far, what.repeat), grads)
        missed = (filled.counted()[0] - before) / every
        if missed <= (1 + _SETTLED) * what.far * what.keys:
            break


def faster_half(rounds: Sequence[Round]) -> list[Round]:
    """Returns the faster half of the rounds: disturbances make steps slower, never faster.

    >>> [one.ms for one in faster_half([Round(ms, 0.0, 0.0) for ms in (3.0, 1.0, 9.0)])]
    [1.0, 3.0]
    """
    return sorted(rounds, key=lambda one: one.ms)[: (len(rounds) + 1) // 2]


def summed_up(passes: Sequence[Sequence[Round]]) -> Round:
    """Returns the mean of the faster half of the quiet rounds, or of all if none was quiet."""
    rounds = [one for rounds in passes for one in rounds]
    quiet = [one for one in rounds if one.quiet]
    kept = faster_half(quiet or rounds)
    columns = ([getattr(one, name) for one in kept] for name in ("ms", "missed", "moved"))
    return Round(*(fmean(column) for column in columns), quiet=bool(quiet))


def spread(passes: Sequence[Sequence[Round]]) -> float:
    """Returns by which fraction the second fastest pass is slower than the fastest.

    >>> round(spread([[Round(1.0, 0.0, 0.0)], [Round(1.5, 0.0, 0.0)], [Round(1.2, 0.0, 0.0)]]), 3)
    0.2
    """
    times = sorted(summed_up([rounds]).ms for rounds in passes)
    return times[1] / times[0] - 1 if len(times) > 1 else 0.0


def is_doubtful(passes: Sequence[Sequence[Round]]) -> bool:
    """Returns whether one more pass may help: the two fastest differ, or none was quiet."""
    return spread(passes) > _APART or not summed_up(passes).quiet
