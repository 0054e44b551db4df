"""The section `[model]` of a job: which model, over which tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import nn

from ..core.errors import ConfigError
from ..models.deepfm import DeepFM
from ..models.dlrm import DLRM
from ..models.two_tower import TwoTower
from ..tables.admission import Admission
from ..tables.expiry import Eviction
from ..tables.initializers import Initializer, Uniform
from ..tables.optimizer_base import Optimizer
from ..tables.optimizers import Adagrad
from ..tables.table import Table
from .config_values import Count, Place, Size, Variant
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
    rows: Count | None = None
    init: Initializer | None = None
    optimizer: Optimizer | None = None
    admit: Admission | None = None
    evict: Eviction | None = None


@dataclass(frozen=True, kw_only=True)
class ModelJob(Variant):
    """What every model has: the width of its tables, and what tables leave open."""

    key: ClassVar[str] = "name"
    dim: Size = 16
    optimizer: Optimizer = field(default_factory=lambda: Adagrad(lr=0.05))
    init: Initializer = field(default_factory=lambda: Uniform(0.05))
    admit: Admission | None = None
    evict: Eviction | None = None
    dist_type: DistType = "hash_roundrobin"
    tables: Mapping[str, TableJob] = field(default_factory=dict)

    may_differ: ClassVar[bool] = False  # whether tables may differ in their dim

    def check(self, data: DataJob, place: Place) -> None:
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

    def check(self, data: DataJob, place: Place) -> None:
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

    def check(self, data: DataJob, place: Place) -> None:
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
