"""How far a benchmark is."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from .cases import Stage

Progress = Callable[[str, int, int], None]  # what, units done, units in all


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
