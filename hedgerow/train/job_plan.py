"""The sharding plan of a job: its tables over ranks, and the dense weights on every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..nn.embedding_modules import collections_of
from ..nn.plan import TablePlan, plain_plan
from ..tables.config import Table
from .job import Job, TableJob
from .job_parts import build_model

_HEAD = ("table", "dim", "dist_type", "ranks", "owner of an id", "rows", "row B", "state B", "rule")
_LEFT = {"table", "dist_type", "ranks", "owner of an id", "rule"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShardingPlan:
    """Tables are sharded over the ranks, and every rank has all dense weights.

    `dense` holds the shapes of the dense weights by name.
    """

    ranks: int
    tables: tuple[TablePlan, ...]
    dense: dict[str, tuple[int, ...]]
    dense_optimizer: str

    @property
    def dense_parameters(self) -> int:
        """The number of dense parameters on every rank."""
        return sum(math.prod(shape) for shape in self.dense.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as a value for JSON."""
        return {
            "ranks": self.ranks,
            "tables": [table.to_dict() for table in self.tables],
            "dense": {name: list(shape) for name, shape in self.dense.items()},
            "dense_parameters": self.dense_parameters,
            "dense_optimizer": self.dense_optimizer,
        }

    def text(self) -> str:
        """Returns the plan as text, with one line per table."""
        lines = _aligned([_HEAD, *(_cells(table) for table in self.tables)])
        over = f"{self.ranks} rank" + ("s" if self.ranks > 1 else "")
        head = f"{len(self.tables)} tables over {over}, each by its own dist_type; ids are unsigned"
        how = "averaged over ranks (DDP)" if self.ranks > 1 else "of this process"
        dense = (
            f"dense, whole on every rank: {self.dense_parameters} parameters, "
            f"{self.dense_optimizer}, gradients {how}"
        )
        shapes = [f"  {name}  {_shape(shape)}" for name, shape in self.dense.items()]
        return "\n".join([head, "", *lines, "", dense, *shapes])


def job_plan(job: Job, ranks: int) -> JobShardingPlan:
    """Returns the plan of a job. It opens no data and allocates no rows.

    >>> from hedgerow.train.job import job_of
    >>> plan = job_plan(job_of({"data": {"source": "clicks"}}), 2)
    >>> [(table.name, table.owner) for table in plan.tables]
    [('user', 'mix64(id) mod 2'), ('item', 'mix64(id) mod 2')]
    """
    model = build_model(_roomless(job))
    return JobShardingPlan(
        ranks=ranks,
        tables=tuple(plain_plan(_as_said(model, job), ranks)),
        dense={name: tuple(weight.shape) for name, weight in model.named_parameters()},
        dense_optimizer=f"{job.dense.optimizer} lr {job.dense.lr:g}",
    )


def job_tables(job: Job) -> list[Table]:
    """Returns the tables of a job as its model has them. It allocates no rows.

    >>> from hedgerow.train.job import job_of
    >>> [(table.name, table.dim) for table in job_tables(job_of({"data": {"source": "clicks"}}))]
    [('user', 17), ('item', 17)]
    """
    return _as_said(build_model(_roomless(job)), job)


def _as_said(model: nn.Module, job: Job) -> list[Table]:
    """Returns the tables of a model with the `dist_type` and `rows` of the job.

    Some models add columns to the rows, so the dims are those of the model.
    """
    said = {table.name: table for table in job.model.table_list(job.data)}
    return [
        replace(table, dist_type=said[table.name].dist_type, rows=said[table.name].rows)
        for collection in collections_of(model)
        for table in collection.tables
    ]


def _roomless(job: Job) -> Job:
    """Returns a job with the same model, whose tables allocate no rows."""
    tables = {name: _small(table) for name, table in job.model.tables.items()}
    return replace(job, model=replace(job.model, tables=tables, dist_type="hash_roundrobin"))


def _small(table: TableJob) -> TableJob:
    return replace(table, rows=None, dist_type=None)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _cells(table: TablePlan) -> tuple[str, ...]:
    ranks = f"all {len(table.ranks)}" if len(table.ranks) > 1 else "this one"
    rows = "grows" if table.rows is None else str(table.rows)
    sizes = (str(table.row_bytes), str(table.state_bytes))
    place = (table.dist_type, ranks, table.owner)
    return (table.name, str(table.dim), *place, rows, *sizes, table.optimizer)


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    return [
        "  ".join(
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for name, cell, width in zip(_HEAD, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
