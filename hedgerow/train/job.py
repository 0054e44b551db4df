"""A training job as its configuration file says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ..core.errors import InputError
from ..core.local_path import local_path
from ..core.whole_file import write_whole
from .config_text import Origin, read_text
from .config_values import Count, Place, Rate, Size, plain, read_section
from .job_data import DataJob
from .job_model import DeepFMJob, ModelJob


@dataclass(frozen=True, kw_only=True)
class DenseJob:
    """`[dense]`: the optimizer of the dense weights, one of torch's."""

    optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    lr: Rate = 1e-3
    weight_decay: Rate = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """`[train]`: how long and how often; None for `eval_every` is once an epoch, and for `threads`
    as many as torch takes by itself. `plan` is a file of `hedgerow plan`, or "auto". `device` is
    where tables and weights are: "cuda" is the GPU of each process; a plan says more exactly.
    With `memory`, as "2GiB", rows beyond it are in files in the folder `rows_in`.
    """

    epochs: Size = 1
    steps: Size | None = None
    seed: Count = 0
    log_every: Size = 100
    eval_every: Size | None = None
    early_stop: Count = 0
    threads: Size | None = None
    plan: str | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    memory: str | None = None
    rows_in: str | None = None

    def located(self, folder: Path) -> TrainJob:
        """Itself, with paths that do not depend on where the program runs."""
        plan, rows_in = self.plan, self.rows_in
        if plan is not None and plan != "auto":
            plan = str(folder / local_path(plan))
        if rows_in is not None:
            rows_in = str(folder / local_path(rows_in))
        return replace(self, plan=plan, rows_in=rows_in)


@dataclass(frozen=True, kw_only=True)
class CheckpointJob:
    """`[checkpoint]`: None for `every_steps` is at the end alone."""

    every_steps: Size | None = None
    keep: Size = 2


@dataclass(frozen=True, kw_only=True)
class Job:
    """All of a job but the folder of its run.

    >>> job = job_of({"data": {"source": "clicks"}, "model": {"name": "dlrm", "dim": 8}})
    >>> job.model.dim, job.train.epochs, job_of(job.to_dict()) == job
    (8, 1, True)
    """

    data: DataJob
    model: ModelJob = field(default_factory=DeepFMJob)
    dense: DenseJob = field(default_factory=DenseJob)
    train: TrainJob = field(default_factory=TrainJob)
    checkpoint: CheckpointJob = field(default_factory=CheckpointJob)

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, fit for JSON; `job_of` takes it back."""
        return plain(self)

    def save(self, path: Path) -> None:
        """Writes it as JSON, whole or not at all."""
        write_whole(path, json.dumps(self.to_dict(), indent=1) + "\n")


def read_job(path: str | PathLike[str], options: Mapping[str, Any] | None = None) -> Job:
    """The job of a TOML file, or of the JSON that `Job.save` wrote.

    `options` are values of a command line that replace the file's: `{"--dim": 8}`. Paths in the
    file are relative to its folder.
    """
    file = local_path(path)
    values, origin = read_text(file)
    return _job(values, origin, options or {}, file.absolute().parent)


def job_of(
    values: Mapping[str, Any],
    origin: str = "the job",
    options: Mapping[str, Any] | None = None,
) -> Job:
    """The job of values as a file has them; `origin` is what errors call them.

    >>> job_of({"data": {"source": "click"}})
    Traceback (most recent call last):
    hedgerow.core.errors.ConfigError: the job: data.source: is 'click'; known: clicks, criteo, \
movielens-100k, parquet, tfrecord, wide-clicks; did you mean 'clicks'?
    """
    return _job(values, Origin(origin), options or {}, Path.cwd())


# What an option of the command line sets.
OPTIONS = {
    "--data": ("data", "source"),
    "--batch-size": ("data", "batch_size"),
    "--model": ("model", "name"),
    "--dim": ("model", "dim"),
    "--lr": ("model", "optimizer", "lr"),
    "--epochs": ("train", "epochs"),
    "--steps": ("train", "steps"),
    "--seed": ("train", "seed"),
    "--plan": ("train", "plan"),
    "--device": ("train", "device"),
}


def _job(values: Mapping[str, Any], origin: Origin, options: Mapping[str, Any], root: Path) -> Job:
    set_by = {OPTIONS[option]: option for option in options}
    place = Place(replace(origin, options=set_by))
    merged: Any = values
    for option, value in options.items():
        merged = _with(merged, OPTIONS[option], value)
    model = merged.get("model") if isinstance(merged, Mapping) else None
    if isinstance(model, Mapping):  # a rate or a width alone leaves the rest as it is by default
        merged = {**merged, "model": _with_defaults(model)}
    job: Job = read_section(Job, merged, place)
    job = replace(
        job,
        data=_located(job.data, root, place.key("data")),
        train=_located(job.train, root, place.key("train")),
    )
    job.data.check(place.key("data"))
    job.model.check(job.data, place.key("model"))
    return job


def _located(section: Any, root: Path, place: Place) -> Any:
    try:
        return section.located(root)
    except InputError as error:  # a URL in place of a path
        return place.refuse(str(error))


def _with(values: Any, path: tuple[str, ...], value: object) -> Any:
    """A copy with one key set; what is no table is left for the reader to refuse."""
    if not isinstance(values, Mapping):
        return values
    if len(path) == 1:
        return {**values, path[0]: value}
    return {**values, path[0]: _with(values.get(path[0], {}), path[1:], value)}


def _with_defaults(model: Mapping[str, Any]) -> dict[str, Any]:
    """Sections that may leave out their name: the model is DeepFM, the optimizer Adagrad."""
    filled = {"name": DeepFMJob.word, **model}
    optimizer = filled.get("optimizer")
    if isinstance(optimizer, Mapping):
        filled["optimizer"] = {"kind": "adagrad", **optimizer}
    return filled
