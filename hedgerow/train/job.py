"""A training job as its configuration file describes it: model, tables, training, checkpoints."""

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
    """One table, `[model.tables.NAME]`; what is None comes from the model."""

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
    """What every model has: the width of its tables, and what tables leave open."""

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
        """Every feature has one table, and every table a feature of the data."""
        known, taken = data.feature_names(), dict[str, str]()
        for name, table in self.tables.items():
            at = place.key("tables").key(name)
            check_names("feature", table.features, known, at.key("features"))
            for feature in table.features:
                if feature in taken:
                    at.refuse(f"feature {feature!r} is of table {taken[feature]!r} already.")
                taken[feature] = name
            if table.dim not in (None, self.dim) and not self.may_differ:
                at.key("dim").refuse(
                    f"is {table.dim}; {self.word} multiplies vectors of all tables, so all have "
                    f"the dim of the model, {self.dim}."
                )
        for name, features in self.layout(data).items():
            at = place.key("tables").key(name)
            if not features:
                at.refuse_name("no feature has this name; give the table features", name, known)
            listed = self.tables[name].features if name in self.tables else ()
            if listed and listed != features:
                at.key("features").refuse(
                    f"lacks {features[-1]!r}, whose table by default is this one; add it, or give "
                    f"it to another table."
                )
            try:
                self._table(name, features, self.tables.get(name, TableJob())).resolve()
            except ConfigError as error:  # a name, a width or rows that no table has
                at.refuse(str(error))

    def layout(self, data: DataJob) -> dict[str, tuple[str, ...]]:
        """Which table has which features: as listed, then one a feature, or one a shared name."""
        found = {name: table.features for name, table in self.tables.items()}
        listed = {feature for features in found.values() for feature in features}
        shared = data.shared()
        for feature in data.feature_names():
            if feature not in listed:
                name = shared.get(feature, feature)
                found[name] = (*found.get(name, ()), feature)
        return found

    def fields(self, data: DataJob) -> dict[str, str]:
        """What strings of features that share a table are hashed with: its name."""
        layout = self.layout(data)
        return {f: name for name, features in layout.items() if len(features) > 1 for f in features}

    def table_list(self, data: DataJob) -> list[Table]:
        """The tables as modules take them."""
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
        """The model, with rows that begin as `seed` says."""
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
        """There are dense numbers."""
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
    """`hr.models.TwoTower`; `tower_dim` is the width of the vectors that are multiplied."""

    word: ClassVar[str] = "two-tower"
    may_differ: ClassVar[bool] = True
    items: tuple[str, ...] = ()
    hidden: tuple[Size, ...] = (64,)
    tower_dim: Size = 32

    def check(self, data: DataJob, place: ConfigPlace) -> None:
        """Each tower has a feature."""
        super().check(data, place)
        known, items = data.feature_names(), self.items or data.item_names()
        check_names("feature", items, known, place.key("items"))
        if not items or set(items) == set(known):
            place.key("items").refuse(
                f"is {list(items)} of {list(known)}; name the features of what is offered, and "
                f"leave at least one to who asks."
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
    """`[train]`: how long and how often; None for `eval_every` is once an epoch, and for `threads`
    as many as torch takes by itself. `plan` is a file of `hedgerow plan`, or "auto". `device` is
    where tables and weights are: "cuda" is the GPU of each process; a plan says more exactly.
    With `memory`, as "2GiB", rows beyond it are in files in the folder `rows_in`.
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
    return _job(values, ConfigOrigin(origin), options or {}, Path.cwd())


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


def _job(
    values: Mapping[str, Any], origin: ConfigOrigin, options: Mapping[str, Any], root: Path
) -> Job:
    set_by = {OPTIONS[option]: option for option in options}
    place = ConfigPlace(replace(origin, options=set_by))
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


def _located(section: Any, root: Path, place: ConfigPlace) -> Any:
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
