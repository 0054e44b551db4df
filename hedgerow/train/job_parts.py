"""From a job to what a trainer takes: model, optimizer and samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..core.errors import ConfigError
from ..data.batch_source import BatchSource
from ..nn.distribute import distribute
from ..nn.on_disk import keep_on_disk
from ..nn.placing import job_device
from .job import DenseJob, Job, TrainJob
from .job_data import batches_of, best_auc
from .loop import Schedule
from .run_ranks import RunRanks
from .thread_choice import threads_for

_OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a job is built of; None where it is not known, or not there."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    train: BatchSource
    test: BatchSource | None
    total_steps: int | None
    best_auc: float | None
    threads: int  # of torch


def build(job: Job, *, measure_threads: bool = False) -> Parts:
    """Opens the data and makes the model, over all ranks of the job; equal jobs start equal.

    With `measure_threads`, a job on the CPU that does not say its `threads` takes those that are
    fast; all ranks take those of the first.

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
    return Parts(model, optimizer, train, test, steps, best, threads)


def _keep_on_disk(model: nn.Module, how: TrainJob) -> None:
    if how.memory is None and how.rows_in is None:
        return
    if how.memory is None or how.rows_in is None or how.device == "cuda":
        raise ConfigError(
            f"train.memory is {how.memory!r} and train.rows_in {how.rows_in!r}, on {how.device}; "
            f"both are needed to keep rows in files, on the cpu."
        )
    keep_on_disk(model, how.rows_in, memory=how.memory)


def schedule(job: Job) -> Schedule:
    """How long the job is, and how often it speaks."""
    how = job.train
    return Schedule(how.epochs, how.steps, how.log_every, how.eval_every, how.early_stop)


def build_model(job: Job) -> nn.Module:
    """The model alone, for a checkpoint to fill."""
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
