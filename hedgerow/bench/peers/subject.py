"""What everyone who is measured can do, and how it is timed: the same code for us and for peers."""

from __future__ import annotations

import gc
import statistics
import time
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .workfile import Work


class Subject:
    """One way to hold and change rows. A subclass has the operations its library has.

    `lookup`, `update` and `insert` are timed and take what `place` made of the batches beforehand,
    in the library's own types (`place_calls` for inserts).
    """

    packages: ClassVar[tuple[str, ...]] = ()  # whose versions the report shows

    def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
        self.work, self.threads, self.optimizer = work, threads, optimizer

    def fill(self) -> None:
        """Makes a table of all rows with their first values."""
        raise NotImplementedError

    def place(self, access: str) -> None:
        """Makes the batches of one access pattern ready."""
        raise NotImplementedError

    def lookup(self, batch: int, output: str) -> Any:
        """The rows of a batch, in new memory ("fresh") or in the same each time ("reused")."""
        raise NotImplementedError

    def update(self, batch: int, output: str) -> Any:
        """The rows of a batch, then one optimizer step on them with the given gradients."""
        raise NotImplementedError

    def place_calls(self) -> None:
        """Makes the slices to insert ready."""
        raise NotImplementedError

    def empty(self) -> None:
        """Makes a table without rows."""
        raise NotImplementedError

    def insert(self, call: int) -> Any:
        """Inserts one slice of rows."""
        raise NotImplementedError

    def array(self, rows: Any) -> NDArray[np.float32]:
        """What a lookup returned, for the comparison."""
        return np.asarray(rows)

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows as they are now."""
        raise NotImplementedError

    def reset(self) -> None:
        """Gives every row its first value and optimizer state again, as after `fill`."""
        raise NotImplementedError

    def leave(self) -> None:
        """Ends what runs beside this process, where something does."""

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Of the packages behind this subject."""
        return {name: metadata.version(name) for name in cls.packages}


def ready(subject: Subject, operation: str, access: str) -> None:
    """Makes what the operation will be given ready."""
    if operation == "insert":
        subject.place_calls()
    else:
        subject.place(access)


def measure(subject: Subject, operation: str, access: str, output: str, calls: int) -> float:
    """Milliseconds of one round.

    A round of lookups or updates is at least `calls` calls and every batch at least once; its time
    is the median call's. A round of inserts fills one table; its time is the sum.
    """
    gc.collect()
    gc.disable()  # a collection in the middle of a call would be charged to the table
    try:
        if operation == "insert":
            return _fill_time_ms(subject)
        batches = len(subject.work.batches(access))
        rounds = max(1, -(-calls // batches))
        call = getattr(subject, operation)
        return statistics.median(
            _time_ms(lambda b=batch: call(b, output))
            for _ in range(rounds)
            for batch in range(batches)
        )
    finally:
        gc.enable()


def _fill_time_ms(subject: Subject) -> float:
    subject.empty()
    return sum(
        _time_ms(lambda c=call: subject.insert(c)) for call in range(len(subject.work.calls()))
    )


def _time_ms(call: Any) -> float:
    start = time.perf_counter()
    kept = call()
    spent = time.perf_counter() - start
    del kept  # a fresh output is given back outside the time, by everyone
    return 1000 * spent


def outcome(subject: Subject, operation: str, access: str, output: str) -> NDArray[np.float32]:
    """What the comparison looks at: what a lookup returns, or rows after updates and inserts."""
    if operation == "lookup":
        return subject.array(subject.lookup(0, output))
    return subject.rows(subject.work.sample(access))
