"""A training job as its configuration file describes it: data, model, training, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import nn

from ..core.errors import ConfigError, InputError
from ..core.files import local_path, write_whole
from ..models.deepfm import DeepFM
from ..models.dlrm import DLRM
from ..models.two_tower import TwoTower
from ..tables.admission import AdmissionRule
from ..tables.config import Table
from ..tables.eviction import Eviction
from ..tables.initializers import Initializer, Uniform
from ..tables.optimizers import Adagrad, Optimizer
from .config_file import (
    ConfigOrigin,
    ConfigPlace,
    NonNegativeInt,
    Rate,
    SectionVariant,
    Size,
    plain,
    read_section,
    read_text,
)
from .job_data import DataJob, check_names

DistType = Literal["continuous", "roundrobin", "hash_roundrobin"]


@dataclass(frozen=True, kw_only=True)
class TableJob:
    """One table, `[model.tables.NAME]`. A value of None is taken from the model."""

    features: tuple[str, ...] = ()
    dim: Size | None = None
    pooling: Literal["sum", "mean", "sqrtn", "max"] = "sum"
    dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    dist_type: DistType | None = None
    rows: NonNegativeInt | None = None
    init: Initializer | None = None
    optimizer: Optimizer | None = None
    admit: AdmissionRule | None = None
    evict: Eviction | None = None


@dataclass(frozen=True, kw_only=True)
class ModelJob(SectionVariant):
    """The settings of every model: the width of its tables, and the defaults of the tables."""

    key: ClassVar[str] = "name"
    dim: Size = 16
    optimizer: Optimizer = field(default_factory=lambda: Adagrad(lr=0.05))
    init: Initializer = field(default_factory=lambda: Uniform(0.05))
    admit: AdmissionRule | None = None
    evict: Eviction | None = None
    dist_type: DistType = "hash_roundrobin"
    tables: Mapping[str, TableJob] = field(default_factory=dict)

    may_differ: ClassVar[bool] = False  # whether tables may differ in their dim

    def check(self, data: DataJob, place: ConfigPlace) -> None:
        """Raises unless every feature has one table, and every table has a feature of the data."""
        known, taken = data.feature_names(), dict[str, str]()
        for name, table in self.tables.items():
            at = place.key("tables").key(name)
            check_names("feature", table.features, known, at.key("features"))
            for feature in table.features:
                if feature in taken:
                    at.refuse(f"feature {feature!r} belongs to table {taken[feature]!r} already.")
                taken[feature] = name
            if table.dim not in (None, self.dim) and not self.may_differ:
                at.key("dim").refuse(
                    f"is {table.dim}; {self.word} multiplies vectors of all tables, so all have "
                    f"the dim of the model, {self.dim}."
                )
        for name, features in self.layout(data).items():
            at = place.key("tables").key(name)
            if not features:
                at.refuse_name("no feature has this name; list features of the table", name, known)
            listed = self.tables[name].features if name in self.tables else ()
            if listed and listed != features:
                at.key("features").refuse(
                    f"lacks {features[-1]!r}, whose table by default is this one; add it, or give "
                    f"it to another table."
                )
            try:
                self._table(name, features, self.tables.get(name, TableJob())).resolve()
            except ConfigError as error:  # an invalid name, width or number of rows
                at.refuse(str(error))

    def layout(self, data: DataJob) -> dict[str, tuple[str, ...]]:
        """Returns the features of each table.

        Listed tables come first. Each other feature has a table of its own, or one that it shares
        by name.
        """
        found = {name: table.features for name, table in self.tables.items()}
        listed = {feature for features in found.values() for feature in features}
        shared = data.shared()
        for feature in data.feature_names():
            if feature not in listed:
                name = shared.get(feature, feature)
                found[name] = (*found.get(name, ()), feature)
        return found

    def fields(self, data: DataJob) -> dict[str, str]:
        """Returns the hash field of each feature that shares a table: the name of the table."""
        layout = self.layout(data)
        return {f: name for name, features in layout.items() if len(features) > 1 for f in features}

    def table_list(self, data: DataJob) -> list[Table]:
        """Returns the tables as modules take them."""
        return [
            self._table(name, features, self.tables.get(name, TableJob()))
            for name, features in self.layout(data).items()
        ]

    def _table(self, name: str, features: tuple[str, ...], job: TableJob) -> Table:
        return Table(
            name,
            job.dim or self.dim,
            features=features,
            pooling=job.pooling,
            dtype=job.dtype,
            dist_type=job.dist_type or self.dist_type,
            rows=job.rows,
            init=job.init,
            optimizer=job.optimizer,
            admit=job.admit,
            evict=job.evict,
        )

    def make(self, data: DataJob, seed: int) -> nn.Module:
        """Returns the model. `seed` determines the first values of its rows."""
        defaults = {
            "init": self.init,
            "optimizer": self.optimizer,
            "admit": self.admit,
            "evict": self.evict,
            "seed": seed,
        }
        return self._made(self.table_list(data), data, defaults)

    def _made(self, tables: list[Table], data: DataJob, defaults: dict[str, Any]) -> nn.Module:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class DeepFMJob(ModelJob):
    """`hr.models.DeepFM`."""

    word: ClassVar[str] = "deepfm"
    hidden: tuple[Size, ...] = (64, 32)

    def _made(self, tables: list[Table], data: DataJob, defaults: dict[str, Any]) -> nn.Module:
        return DeepFM(tables, dense=data.dense_columns(), hidden=self.hidden, **defaults)


@dataclass(frozen=True, kw_only=True)
class DLRMJob(ModelJob):
    """`hr.models.DLRM`."""

    word: ClassVar[str] = "dlrm"
    bottom: tuple[Size, ...] = (64,)
    top: tuple[Size, ...] = (64,)

    def check(self, data: DataJob, place: ConfigPlace) -> None:
        """Raises if the data has no dense columns."""
        super().check(data, place)
        if not data.dense_columns():
            place.key("name").refuse(
                f"is 'dlrm', which needs dense numbers, and {data.word} as given has none; use "
                f"deepfm or two-tower."
            )

    def _made(self, tables: list[Table], data: DataJob, defaults: dict[str, Any]) -> nn.Module:
        dense = data.dense_columns()
        return DLRM(tables, dense=dense, bottom=self.bottom, top=self.top, **defaults)


@dataclass(frozen=True, kw_only=True)
class TwoTowerJob(ModelJob):
    """`hr.models.TwoTower`. `tower_dim` is the width of the vectors that are multiplied."""

    word: ClassVar[str] = "two-tower"
    may_differ: ClassVar[bool] = True
    items: tuple[str, ...] = ()
    hidden: tuple[Size, ...] = (64,)
    tower_dim: Size = 32

    def check(self, data: DataJob, place: ConfigPlace) -> None:
        """Raises unless each tower has a feature."""
        super().check(data, place)
        known, items = data.feature_names(), self.items or data.item_names()
        check_names("feature", items, known, place.key("items"))
        if not items or set(items) == set(known):
            place.key("items").refuse(
                f"is {list(items)} of {list(known)}; name the features of the items, and leave at "
                f"least one for the user."
            )

    def _made(self, tables: list[Table], data: DataJob, defaults: dict[str, Any]) -> nn.Module:
        return TwoTower(
            tables,
            items=self.items or data.item_names(),
            dense=data.dense_columns(),
            hidden=self.hidden,
            dim=self.tower_dim,
            **defaults,
        )


@dataclass(frozen=True, kw_only=True)
class DenseJob:
    """`[dense]`: the optimizer of the dense weights, one of torch's."""

    optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    lr: Rate = 1e-3
    weight_decay: Rate = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """`[train]`: the length of the training, its logs and its devices.

    With `eval_every` of None, evaluation runs once per epoch. With `threads` of None, torch
    chooses. `plan` is a file of `hedgerow plan`, or "auto". `device` is where tables and weights
    are; "cuda" is the GPU of each process, and a plan is more precise. With `memory`, such as
    "2GiB", rows beyond it are kept in files in the folder `rows_in`.
    """

    epochs: Size = 1
    steps: Size | None = None
    seed: NonNegativeInt = 0
    log_every: Size = 100
    eval_every: Size | None = None
    early_stop: NonNegativeInt = 0
    threads: Size | None = None
    plan: str | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    memory: str | None = None
    rows_in: str | None = None

    def located(self, folder: Path) -> TrainJob:
        """Returns the section with absolute paths."""
        plan, rows_in = self.plan, self.rows_in
        if plan is not None and plan != "auto":
            plan = str(folder / local_path(plan))
        if rows_in is not None:
            rows_in = str(folder / local_path(rows_in))
        return replace(self, plan=plan, rows_in=rows_in)


@dataclass(frozen=True, kw_only=True)
class CheckpointJob:
    """`[checkpoint]`: with `every_steps` of None, only the end of the run is saved."""

    every_steps: Size | None = None
    keep: Size = 2


@dataclass(frozen=True, kw_only=True)
class Job:
    """A whole job, except for the folder of its run.

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
        """Returns every key with its value, as a value for JSON. `job_of` reads it."""
        return plain(self)

    def save(self, path: Path) -> None:
        """Writes the job as JSON, atomically."""
        write_whole(path, json.dumps(self.to_dict(), indent=1) + "\n")


def read_job(path: str | PathLike[str], options: Mapping[str, Any] | None = None) -> Job:
    """Reads a job from a TOML file, or from the JSON that `Job.save` wrote.

    `options` are values of a command line that replace those of the file, such as `{"--dim": 8}`.
    Paths in the file are relative to its folder.
    """
    file = local_path(path)
    values, origin = read_text(file)
    return _job(values, origin, options or {}, file.absolute().parent)


def job_of(
    values: Mapping[str, Any],
    origin: str = "the job",
    options: Mapping[str, Any] | None = None,
) -> Job:
    """Returns the job of nested values, as a file has them. `origin` names them in errors.

    >>> job_of({"data": {"source": "click"}})
    Traceback (most recent call last):
    hedgerow.core.errors.ConfigError: the job: data.source: is 'click'; known: clicks, criteo, \
movielens-100k, parquet, tfrecord, wide-clicks; did you mean 'clicks'?
    """
    return _job(values, ConfigOrigin(origin), options or {}, Path.cwd())


# The key that each option of the command line sets.
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


def _job(
    values: Mapping[str, Any], origin: ConfigOrigin, options: Mapping[str, Any], root: Path
) -> Job:
    set_by = {OPTIONS[option]: option for option in options}
    place = ConfigPlace(replace(origin, options=set_by))
    merged: Any = values
    for option, value in options.items():
        merged = _with(merged, OPTIONS[option], value)
    model = merged.get("model") if isinstance(merged, Mapping) else None
    if isinstance(model, Mapping):  # add defaults, so that a rate or a width can be set alone
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


def _located(section: Any, root: Path, place: ConfigPlace) -> Any:
    try:
        return section.located(root)
    except InputError as error:  # a URL in place of a path
        return place.refuse(str(error))


def _with(values: Any, path: tuple[str, ...], value: object) -> Any:
    """Returns a copy with one key set.

    Values that are not tables are left for `read_section` to refuse.
    """
    if not isinstance(values, Mapping):
        return values
    if len(path) == 1:
        return {**values, path[0]: value}
    return {**values, path[0]: _with(values.get(path[0], {}), path[1:], value)}


def _with_defaults(model: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the default names of sections: the model is DeepFM, the optimizer Adagrad."""
    filled = {"name": DeepFMJob.word, **model}
    optimizer = filled.get("optimizer")
    if isinstance(optimizer, Mapping):
        filled["optimizer"] = {"kind": "adagrad", **optimizer}
    return filled
