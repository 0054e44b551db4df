"""What everyone who is measured can do, how it is timed, and how it answers as a process."""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
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


def serve(*kinds: type[Subject]) -> None:
    """Answers requests until stdin ends. An exception ends the process, with its text on stderr.

    A module with several kinds of subjects serves the one that an argument names. Answers go to the
    descriptor that the last argument names.
    """
    kind = next((kind for kind in kinds if kind.__name__ in sys.argv), kinds[0])
    answers = os.fdopen(int(sys.argv[-1]), "w")
    made: list[Subject] = []
    try:
        for line in sys.stdin:
            answers.write(json.dumps(_do(kind, made, json.loads(line))) + "\n")
            answers.flush()
    finally:
        for subject in made:
            subject.leave()


def _do(kind: type[Subject], made: list[Subject], request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "prepare":
        return _prepare(kind, made, request)
    if not made:
        raise RuntimeError(f"{request['do']} came before prepare")
    return _answer(made[-1], request)


def _prepare(kind: type[Subject], made: list[Subject], request: dict[str, Any]) -> dict[str, Any]:
    try:
        versions = kind.versions()
        work = Work.read(Path(request["work"]))
        made.append(kind(work, request["threads"], request["optimizer"]))
        if request["filled"]:
            made[-1].fill()
    except ModuleNotFoundError as error:
        return {"missing": f"{error}; build its environment: make bench-peers"}
    return {"versions": versions}


def _answer(subject: Subject, request: dict[str, Any]) -> dict[str, Any]:
    case = request["operation"], request["access"], request["output"]
    if request["do"] == "place":
        ready(subject, request["operation"], request["access"])
        return {}
    if request["do"] == "measure":
        return {"ms": measure(subject, *case, request["calls"])}
    if request["do"] == "outcome":
        np.save(request["to"], outcome(subject, *case))
        return {}
    raise RuntimeError(f"unknown request {request['do']!r}")
