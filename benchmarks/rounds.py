"""How a benchmark runs: its settings, rounds in which we and a peer take turns, how far it is."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hedgerow import native
from hedgerow.calibration.machine import cpu_name
from hedgerow.core import checks
from hedgerow.core.errors import InputError

from .cases import Stage
from .contestants import CONTESTANTS, Contestant, Patience

_MOST_THREADS = 1024  # the core's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user chose, and for tests who takes part and how long one waits.

    >>> Settings(rounds=3).threads
    2
    """

    threads: int = 2
    rounds: int = 5
    cases: tuple[str, ...] = ()  # patterns; none: all
    peers: tuple[str, ...] = ()
    quick: bool = False
    contestants: Mapping[str, Contestant] = field(default_factory=lambda: CONTESTANTS)
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        checks.count("rounds", self.rounds, least=1)
        if not 1 <= self.threads <= _MOST_THREADS:
            raise InputError(f"threads is {self.threads}; it must lie in 1..{_MOST_THREADS}.")


Progress = Callable[[str, int, int], None]  # what, units done, units in all
OnRound = Callable[[str], None]


def counted(progress: Progress, total: int) -> Callable[[str], None]:
    """What to call after each of `total` rounds, with what was done.

    >>> told = counted(lambda *line: print(*line), 2)
    >>> told("save")
    save 1 2
    """
    rounds = itertools.count(1)
    return lambda text: progress(text, next(rounds), total)


class Counter:
    """Counts rounds of one case against one peer; single-owner."""

    def __init__(self, progress: Progress, stages: list[Stage], rounds: int) -> None:
        self._progress, self._rounds = progress, rounds + 1  # one to warm up
        pairs = sum(len(case.peers) for stage in stages for case in stage.cases)
        self._done, self._total = 0, pairs * self._rounds
        self._finished_cases = 0

    def say(self, text: str) -> None:
        """Names what is going on."""
        self._progress(text, self._done, self._total)

    def round(self, text: str) -> None:
        """One round is done."""
        self._done += 1
        self.say(text)

    def finish(self, cases: int) -> None:
        """So many more cases are settled, whether all their rounds came or not."""
        self._finished_cases += cases
        self._done = self._finished_cases * self._rounds


def in_turns(
    ours: Callable[[], object], peer: Callable[[], object], *, ours_first: bool
) -> tuple[float, float]:
    """Milliseconds of both.

    >>> order = []
    >>> _ = in_turns(lambda: order.append("a"), lambda: order.append("b"), ours_first=False)
    >>> order
    ['b', 'a']
    """
    spent: dict[bool, float] = {}
    for is_ours in (ours_first, not ours_first):
        start = time.perf_counter()
        (ours if is_ours else peer)()
        spent[is_ours] = 1e3 * (time.perf_counter() - start)
    return spent[True], spent[False]


def compared(case: str, peer: str, times: list[tuple[float, float]]) -> dict[str, Any]:
    """Medians of the rounds, and how far their ratios lie apart."""
    ours_ms, peer_ms = (statistics.median(side) for side in zip(*times, strict=True))
    ratios = sorted(theirs / own for own, theirs in times)
    return {
        "case": case,
        "ours_ms": round(ours_ms, 4),
        "peer": peer,
        "peer_ms": round(peer_ms, 4),
        "ratio": round(peer_ms / ours_ms, 3),
        "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
    }


def machine() -> dict[str, Any]:
    """What the numbers were taken on.

    >>> machine()["isa"] in native.isas()
    True
    """
    return {"cpu": cpu_name(), "cpus": os.cpu_count(), "isa": native.isa()}
