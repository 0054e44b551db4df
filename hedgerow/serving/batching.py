"""Joins requests that come together into one run of a model, and cuts its outputs again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError
from .joining import pieces
from .model import Joining, Tensors

Run = Callable[[Tensors], Tensors]
_Shape = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Batching:
    """How long a request may wait for others, and how many rows run at once.

    A request waits only while another of the same signature is running: alone, it never waits.

    >>> Batching(window_s=0.005).most_rows
    4096
    """

    window_s: float = 0.002
    most_rows: int = 4096

    def __post_init__(self) -> None:
        checks.whole("Batching", "most_rows", self.most_rows, least=1)
        if not 0 <= self.window_s <= 10:
            raise ConfigError(f"Batching.window_s is {self.window_s!r}; it must lie in 0..10.")


class _Job:
    """A request: its inputs and its own deadline, then its outputs or its error."""

    __slots__ = ("context", "error", "inputs", "outputs", "rows")

    def __init__(self, inputs: Tensors, rows: int) -> None:
        self.inputs, self.rows = inputs, rows
        self.context: Context = copy_context()  # of its thread: another one may run it
        self.outputs: Tensors | None = None
        self.error: Exception | None = None


class _Group:
    """Requests that run together; the thread of the first one runs them."""

    __slots__ = ("done", "full", "jobs", "rows")

    def __init__(self) -> None:
        self.jobs: list[_Job] = []
        self.rows = 0
        self.full, self.done = threading.Event(), threading.Event()


class Batcher:
    """A signature's `run` that joins the inputs of several callers; owns a lock.

    >>> joining = Joining("x", {"y": "samples"})
    >>> double = Batcher(lambda inputs: {"y": inputs["x"] * 2}, joining, Batching())
    >>> double({"x": torch.tensor([1, 2])})
    {'y': tensor([2, 4])}
    """

    def __init__(
        self, run: Run, joining: Joining, batching: Batching, counters: Counters | None = None
    ) -> None:
        self._run = run
        self._joining = joining
        self._counters = counters or Counters()
        self._batching = batching
        self._lock = threading.Lock()
        self._open: dict[_Shape, _Group] = {}
        self._running = 0

    def __call__(self, inputs: Tensors) -> Tensors:
        """The outputs of these inputs."""
        self._joining.check(inputs)  # now: joined, one wrong request may hide another
        rows = len(inputs[self._joining.samples])
        if rows >= self._batching.most_rows:
            return self._run(inputs)
        job, shape = _Job(inputs, rows), _shape(inputs)
        group, leads, waits = self._join(job, shape)
        if leads:
            self._lead(group, shape, waits)
        else:
            group.done.wait()
        if job.error is not None:
            raise job.error
        assert job.outputs is not None
        return job.outputs

    def _join(self, job: _Job, shape: _Shape) -> tuple[_Group, bool, bool]:
        """Its group, whether it leads it, and whether the group waits for more."""
        most = self._batching.most_rows
        with self._lock:
            group = self._open.get(shape)
            leads = group is None or group.rows + job.rows > most
            if group is None or leads:
                if group is not None:
                    group.full.set()
                group = self._open[shape] = _Group()
            group.jobs.append(job)
            group.rows += job.rows
            if group.rows == most:
                group.full.set()
            waits = leads and self._running > 0
            self._running += leads
        return group, leads, waits

    def _lead(self, group: _Group, shape: _Shape, waits: bool) -> None:
        try:
            if waits:
                group.full.wait(self._batching.window_s)
            with self._lock:  # from here on nobody joins
                if self._open.get(shape) is group:
                    del self._open[shape]
            self._run_jobs(group.jobs)
        finally:
            with self._lock:
                self._running -= 1
            group.done.set()

    def _run_jobs(self, jobs: list[_Job]) -> None:
        if len(jobs) > 1 and self._run_joined(jobs):
            return
        for job in jobs:  # alone, so that one wrong request spoils no other
            try:
                job.outputs = job.context.run(self._run, job.inputs)
            except Exception as error:
                job.error = error

    def _run_joined(self, jobs: list[_Job]) -> bool:
        """Whether it worked, and the outputs could be cut."""
        names = jobs[0].inputs
        try:
            outputs = self._run(
                {name: torch.cat([job.inputs[name] for job in jobs]) for name in names}
            )
        except Exception:
            return False  # each runs alone then, and raises what it raises
        cut = pieces(outputs, self._joining.cuts, [job.rows for job in jobs])
        for job, own in zip(jobs, cut or (), strict=False):
            job.outputs = own
        self._counters.add("joined_requests", len(cut or ()))
        return cut is not None


def _shape(inputs: Mapping[str, Tensor]) -> _Shape:
    return tuple((name, v.dtype, tuple(v.shape[1:])) for name, v in sorted(inputs.items()))
