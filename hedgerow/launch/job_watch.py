"""Runs a job of servers and workers to its end: shows their output and stops them in order."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..core.errors import ConfigError, InputError

FAILED = 1
_SIGNALLED = 128  # plus the signal's number, as shells do
Show = Callable[[str, bool], None]
"""Shows a line; the second argument is whether it goes to stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a job runs: servers, and workers that run `script` (and its arguments) with Python.

    >>> JobSpec(servers=0, workers=2, script=("train.py",))
    Traceback (most recent call last):
        ...
    hedgerow.core.errors.InputError: servers is 0; it must be at least 1.
    """

    servers: int
    workers: int
    script: tuple[str, ...]
    checkpoint: Path | None = None
    keys: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        for name in ("servers", "workers"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not self.script:
            raise ConfigError("no script to run; name one.")


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A line of output of a worker."""

    rank: int
    is_error: bool
    text: str


@dataclass(frozen=True, slots=True)
class JobMessage:
    """A message about the job for its user."""

    text: str


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The end of a worker; `why` is set if its status is not the reason."""

    rank: int
    status: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class JobLost:
    """The failure of the whole job."""

    why: str
    status: int = FAILED


Watched = WorkerLine | WorkerEnded | JobLost
Event = Watched | JobMessage
Post = Callable[[Event], None]


class JobProcesses(Protocol):
    """The processes of a job, wherever they run."""

    def start(self, post: Post) -> None:
        """Starts the servers and, when all listen, the workers. Any thread may call `post`."""
        ...

    def stop_workers(self) -> None:
        """Asks all workers to end; each still posts its end."""
        ...

    def stop_servers(self) -> list[str]:
        """Lets the servers save and end; returns errors as text."""
        ...

    def close(self) -> None:
        """Ends all remaining processes."""
        ...


def run_job(crew: JobProcesses, workers: int, show: Show) -> int:
    """Returns the job's status: 0, the first failed worker's, or 128 plus a signal's number."""
    events: queue.SimpleQueue[Watched] = queue.SimpleQueue()

    def post(event: Event) -> None:
        if isinstance(event, JobMessage):  # shown now: the start may take long
            show(f"hedgerow: {event.text}", True)
        else:
            events.put(event)

    try:
        crew.start(post)
        with _signals_as(post):
            status = _watch(events, crew, workers, show)
            for complaint in crew.stop_servers():
                show(f"hedgerow: {complaint}", True)
                status = status or FAILED
    finally:
        crew.close()
    return status


@contextmanager
def _signals_as(post: Post) -> Iterator[None]:
    """Makes the first SIGINT or SIGTERM end the job in order, and a second one at once."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def first(number: int, _frame: object) -> None:
        for one in numbers:
            signal.signal(one, signal.default_int_handler)
        told = f"{signal.Signals(number).name}: ending workers, then servers."
        post(JobLost(told, _SIGNALLED + number))

    before = {number: signal.signal(number, first) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(events: queue.SimpleQueue[Watched], crew: JobProcesses, workers: int, show: Show) -> int:
    """Waits until every worker has ended; stops the others after the first failure."""
    left, status = workers, 0
    while left:
        event = events.get()
        if isinstance(event, WorkerLine):
            show(f"[{event.rank}] {event.text}", event.is_error)
            continue
        left -= isinstance(event, WorkerEnded)
        if event.status and not status:
            status = event.status
            show(f"hedgerow: {_reason(event, workers)}", True)
            if left:
                crew.stop_workers()
    return status


def _reason(event: WorkerEnded | JobLost, workers: int) -> str:
    if isinstance(event, JobLost):
        return event.why
    what = event.why or f"ended with status {event.status}"
    others = "; the other workers are ended" if workers > 1 else ""
    return f"worker {event.rank} of {workers} {what}{others}."
