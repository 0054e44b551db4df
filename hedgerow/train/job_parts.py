"""Builds the model, optimizer and data of a job, and chooses its number of threads.

With all threads of a large machine, small steps are many times slower than with one thread, because
starting the threads takes longer than their work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from ..core.errors import ConfigError
from ..core.id_batch import IdBatch
from ..data.source import BatchSource
from ..nn.distribute import distribute
from ..nn.follow_plan import job_device
from ..nn.tier_stores import keep_on_disk
from .job import DenseJob, Job, TrainJob
from .job_data import batches_of, best_auc
from .loop import LoopSchedule
from .run_ranks import RunRanks

_log = logging.getLogger(__name__)
_ROUNDS = 3
_GAIN = 1.5  # required speed-up of fewer threads, so that equal jobs choose the same number


def choose(default: int, measure: Callable[[int], float]) -> int:
    """Returns `default`, or a smaller number of threads that is at least 1.5 times as fast.

    `measure` returns the seconds of a step with a number of threads. The counts are measured in
    turns, and the fastest round of each counts, to reduce the effect of other work on the machine.

    >>> choose(16, lambda threads: {1: 0.002, 4: 0.003, 16: 0.02}[threads])
    1
    >>> choose(16, lambda threads: {1: 0.2, 4: 0.05, 16: 0.04}[threads])
    16
    """
    counts = [default]
    fewer = 1
    while fewer < default:
        counts.append(fewer)
        fewer *= 4
    if len(counts) == 1:
        return default
    best_s = {
        count: min(times)
        for count, times in zip(
            counts,
            zip(*([measure(count) for count in counts] for _ in range(_ROUNDS)), strict=True),
            strict=True,
        )
    }
    fastest = min(counts, key=lambda count: best_s[count])
    chosen = fastest if best_s[fastest] * _GAIN < best_s[default] else default
    _log.info(
        "torch takes %d of %d threads: a step took %s; train.threads sets another number",
        chosen,
        default,
        ", ".join(f"{best_s[count] * 1e3:.2f} ms with {count}" for count in sorted(counts)),
    )
    return chosen


def threads_for(job: Job, model: nn.Module) -> int:
    """Returns the number of threads for a job. `model` is on the CPU and not distributed yet.

    The function runs steps with made-up samples. It inserts no row, and changes no weight, state or
    random number.

    >>> from hedgerow.train.job import job_of
    >>> from hedgerow.train.job_parts import build_model
    >>> job = job_of({"data": {"source": "clicks", "batch_size": 8}})
    >>> 1 <= threads_for(job, build_model(job)) <= torch.get_num_threads()
    True
    """
    default, random = torch.get_num_threads(), torch.get_rng_state()
    samples = job.data.batch_size
    ids = IdBatch.from_dict({name: torch.arange(samples) for name in job.data.feature_names()})
    dense, labels = torch.zeros(samples, job.data.dense_columns()), torch.zeros(samples)
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def step() -> None:
        loss = functional.binary_cross_entropy_with_logits(model(dense, ids), labels)
        if weights and loss.requires_grad:
            torch.autograd.grad(loss, weights, allow_unused=True)

    def measure(threads: int) -> float:
        torch.set_num_threads(threads)
        step()  # warm up: starting threads is not measured
        began_s = time.perf_counter()
        step()
        return time.perf_counter() - began_s

    try:
        return choose(default, measure)
    finally:
        torch.set_num_threads(default)
        torch.set_rng_state(random)


_OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


@dataclass(frozen=True, slots=True, eq=False)
class JobParts:
    """The parts of a job. A value of None is unknown or absent."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    train: BatchSource
    test: BatchSource | None
    total_steps: int | None
    best_auc: float | None
    threads: int  # torch's number of threads


def build(job: Job, *, measure_threads: bool = False) -> JobParts:
    """Opens the data and makes the model, over all ranks of the job.

    Equal jobs start with equal weights. With `measure_threads`, a job on the CPU without `threads`
    chooses a fast number of threads, and all ranks use that of the first.

    >>> from hedgerow.train.job import job_of
    >>> job = job_of({"data": {"source": "clicks", "steps": 40}, "train": {"epochs": 2}})
    >>> parts = build(job)
    >>> type(parts.model).__name__, parts.total_steps, 0.9 < parts.best_auc < 0.95
    ('DeepFM', 80, True)
    """
    if job.train.threads is not None:
        torch.set_num_threads(job.train.threads)
    fields = job.model.fields(job.data)
    train, test = job.data.train(fields), job.data.test(fields)
    schedule(job).check_test(test is not None)
    model = build_model(job)
    if job.train.device == "cuda" and job.train.plan is None:
        model.to(job_device())
    threads = torch.get_num_threads()
    if measure_threads and job.train.threads is None and job.train.device == "cpu":
        threads = threads_for(job, model)
    _keep_on_disk(model, job.train)
    model = distribute(model, plan=job.train.plan)
    optimizer = _optimizer(job.dense, model)
    threads = int(RunRanks(model).first(threads))
    torch.set_num_threads(threads)
    steps, best = _total_steps(job, train), best_auc(train)
    return JobParts(model, optimizer, train, test, steps, best, threads)


def _keep_on_disk(model: nn.Module, how: TrainJob) -> None:
    if how.memory is None and how.rows_in is None:
        return
    if how.memory is None or how.rows_in is None or how.device == "cuda":
        raise ConfigError(
            f"train.memory is {how.memory!r} and train.rows_in {how.rows_in!r}, on {how.device}; "
            f"both are needed to keep rows in files, on the cpu."
        )
    keep_on_disk(model, how.rows_in, memory=how.memory)


def schedule(job: Job) -> LoopSchedule:
    """Returns the schedule of the job."""
    how = job.train
    return LoopSchedule(how.epochs, how.steps, how.log_every, how.eval_every, how.early_stop)


def build_model(job: Job) -> nn.Module:
    """Returns the model of the job, for example to load a checkpoint into it."""
    torch.manual_seed(job.train.seed)
    return job.model.make(job.data, job.train.seed)


def _optimizer(dense: DenseJob, model: nn.Module) -> torch.optim.Optimizer:
    kind = _OPTIMIZERS[dense.optimizer]
    return kind(model.parameters(), lr=dense.lr, weight_decay=dense.weight_decay)


def _total_steps(job: Job, train: BatchSource) -> int | None:
    batches, limit = batches_of(train, job.data.batch_size), job.train.steps
    if batches is None:
        return limit
    return min(batches * job.train.epochs, limit) if limit else batches * job.train.epochs
