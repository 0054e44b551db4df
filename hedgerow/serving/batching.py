"""Joins concurrent requests into one run of a model, and splits the outputs among them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError
from .arguments import LENGTHS, WEIGHTS, Arguments, Ids, Numbers
from .model import Joining, Tensors

SAMPLES = "samples"  # the cut of an output with one entry per sample
_SIZES = (3, 2, 4)  # numbers of samples of the trial requests
_CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # allows another summation order, not a mix of samples

Cuts = Mapping[str, str]
Model = Callable[[list[Tensor]], Mapping[str, Tensor]]


def find_cuts(model: Model, arguments: Arguments, known: Mapping[str, Tensor]) -> Cuts | None:
    """Returns how to cut each output of joined requests: by samples, or by an output of lengths.

    Runs the model on random requests, alone and joined. `known` has some ids of each feature that
    have rows. Returns None if no cut gives each request the output that it gets alone: requests
    of a model that mixes samples or draws random numbers must not be joined.

    >>> arguments = Arguments((Numbers("x", torch.float32, (2,)),))
    >>> find_cuts(lambda inputs: {"y": inputs[0] * 2}, arguments, {})
    {'y': 'samples'}
    >>> find_cuts(lambda inputs: {"y": inputs[0].softmax(0)}, arguments, {}) is None
    True
    """
    draw = torch.Generator().manual_seed(0)
    requests = [_drawn(arguments, known, samples, draw) for samples in _SIZES]
    joined = {name: torch.cat([one[name] for one in requests]) for name in requests[0]}
    try:
        alone = [model([*one.values()]) for one in requests]
        together = model([*joined.values()])
    except Exception as error:  # a model may raise anything on random inputs
        logging.getLogger("hedgerow").warning(
            "requests of this model will not be joined: it fails on tried inputs: %s", error
        )
        return None
    cuts = {name: _cut(name, together, alone) for name in together}
    return {name: cut for name, cut in cuts.items() if cut} if all(cuts.values()) else None


def pieces(
    outputs: Mapping[str, Tensor], cuts: Cuts, samples: Sequence[int]
) -> list[dict[str, Tensor]] | None:
    """Returns the outputs of each joined request, or None if their sizes do not fit the cuts.

    >>> found = {"y": torch.arange(3), "y_lengths": torch.tensor([2, 1])}
    >>> pieces(found, {"y": "y_lengths", "y_lengths": "samples"}, [1, 1])[1]
    {'y': tensor([2]), 'y_lengths': tensor([1])}
    """
    parts: dict[str, tuple[Tensor, ...]] = {}
    for name, value in outputs.items():
        sizes = samples if cuts[name] == SAMPLES else _lengths(outputs[cuts[name]], samples)
        if sizes is None or not value.dim() or len(value) != sum(sizes):
            return None
        parts[name] = value.split(list(sizes))
    return [{name: part[i] for name, part in parts.items()} for i in range(len(samples))]


def _lengths(lengths: Tensor, samples: Sequence[int]) -> list[int] | None:
    """Returns the number of values per request, from the number per sample; None if invalid."""
    if lengths.dim() != 1 or lengths.is_floating_point() or len(lengths) != sum(samples):
        return None
    return [int(part.sum()) for part in lengths.split(list(samples))]


def _cut(name: str, together: Mapping[str, Tensor], alone: list[Mapping[str, Tensor]]) -> str:
    """Returns the cut that gives each request the output that it gets alone; empty if none does."""
    for cut in (SAMPLES, name + LENGTHS):
        if cut != SAMPLES and cut not in together:
            continue
        chosen = {n: together[n] for n in (name, cut) if n in together}
        found = pieces(chosen, {name: cut, cut: SAMPLES}, _SIZES)
        if found and all(_equal(p[name], a[name]) for p, a in zip(found, alone, strict=True)):
            return cut
    return ""


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, equal_nan=True, **_CLOSE)


def _drawn(
    arguments: Arguments, known: Mapping[str, Tensor], samples: int, draw: torch.Generator
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for one in arguments.sent:
        if isinstance(one, Numbers):
            found[one.name] = _numbers(one, samples, draw)
            continue
        for name in one.features:
            found |= _ids(one, name, known.get(name), samples, draw)
    return found


def _numbers(one: Numbers, samples: int, draw: torch.Generator) -> Tensor:
    shape = (samples, *one.sizes)
    if one.dtype.is_floating_point or one.dtype.is_complex:
        return torch.randn(shape, generator=draw).to(one.dtype)
    return torch.randint(2, shape, generator=draw).to(one.dtype)  # small: they may be indices


def _ids(
    one: Ids, name: str, known: Tensor | None, samples: int, draw: torch.Generator
) -> dict[str, Tensor]:
    lengths = torch.randint(4, (samples,), generator=draw)
    lengths[0] = samples + 1  # so that the number of ids never equals the number of samples
    count = int(lengths.sum())
    if known is None or not len(known):
        known = torch.arange(1, 8)
    found = {name: known[torch.randint(len(known), (count,), generator=draw)]}
    found[name + LENGTHS] = lengths
    if one.weighted:
        found[name + WEIGHTS] = torch.rand(count, generator=draw)
    return found


Run = Callable[[Tensors], Tensors]
_Shape = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Batching:
    """How long a request waits for others, and the most rows in one run.

    A request waits only while another request of its signature runs. A request alone never waits.

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
    """A request: its inputs, its context with its deadline, and its outputs or its error."""

    __slots__ = ("context", "error", "inputs", "outputs", "rows")

    def __init__(self, inputs: Tensors, rows: int) -> None:
        self.inputs, self.rows = inputs, rows
        self.context: Context = copy_context()  # another thread may run this request
        self.outputs: Tensors | None = None
        self.error: Exception | None = None


class _Group:
    """Requests that run together, in the thread of the first one."""

    __slots__ = ("done", "full", "jobs", "rows")

    def __init__(self) -> None:
        self.jobs: list[_Job] = []
        self.rows = 0
        self.full, self.done = threading.Event(), threading.Event()


class Batcher:
    """The `run` of a signature, which joins the inputs of concurrent callers. Owns a lock.

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
        """Returns the outputs for these inputs."""
        self._joining.check(inputs)  # before the join: two invalid requests may be valid together
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
        """Returns the request's group, whether it leads the group, and whether the group waits."""
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
            with self._lock:  # no request joins the group after this
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
        for job in jobs:  # one by one: an invalid request must not fail the others
            try:
                job.outputs = job.context.run(self._run, job.inputs)
            except Exception as error:
                job.error = error

    def _run_joined(self, jobs: list[_Job]) -> bool:
        """Returns whether the joined run succeeded and its outputs could be cut."""
        names = jobs[0].inputs
        try:
            outputs = self._run(
                {name: torch.cat([job.inputs[name] for job in jobs]) for name in names}
            )
        except Exception:
            return False  # each request then runs alone and gets its own error
        cut = pieces(outputs, self._joining.cuts, [job.rows for job in jobs])
        for job, own in zip(jobs, cut or (), strict=False):
            job.outputs = own
        self._counters.add("joined_requests", len(cut or ()))
        return cut is not None


def _shape(inputs: Mapping[str, Tensor]) -> _Shape:
    return tuple((name, v.dtype, tuple(v.shape[1:])) for name, v in sorted(inputs.items()))
