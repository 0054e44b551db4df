"""Plans where the tables of a model are placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from ..core.checks import unknown
from ..core.errors import ConfigError, DtypeError, InputError
from ..planner import make_plan
from ..planner.plan import Plan
from ..planner.problem.key_stats import KeyStats
from ..planner.problem.table_spec import Feature, TableSpec
from ..planner.problem.topology import Reserve, Topology
from ..planner.sizes.storage import dense_size, reserve_for
from ..planner.times.calibration import Calibration
from ..routing.router import Router
from ..tables.admission import Count, Within
from ..tables.config import Table
from ..tables.layout import RowLayout
from .embedding_modules import collections_of

_PUBLISHED_NAMES = {"rowadagrad": "rowwise_adagrad"}


def spec_of(
    table: Table,
    rows: int,
    *,
    ids_per_sample: Mapping[str, float] | None = None,
    stats: KeyStats | None = None,
) -> TableSpec:
    """Returns the planner's description of one table of `rows` rows.

    `ids_per_sample` is given by feature and defaults to 1. The rule by which ranks share the ids is
    the table's own `dist_type`.

    >>> spec = spec_of(Table("item", 16, features=["item", "seen"], dist_type="roundrobin"), 1000)
    >>> spec.dist_type, spec.optimizer, len(spec.features)
    ('roundrobin', 'adagrad', 2)
    """
    known = ids_per_sample or {}
    pooled = table.pooling != "none" and not isinstance(table.pooling, tuple)
    return TableSpec(
        name=table.name,
        rows=rows,
        dim=table.dim,
        dtype=table.dtype,
        optimizer=_optimizer(table),
        counter_rows=_counter_rows(table, rows),
        features=tuple(Feature(known.get(name, 1.0), pooled) for name in table.features),
        dist_type=table.dist_type,
        stats=stats,
    )


def specs_of(model: nn.Module, rows: Mapping[str, int] | None = None) -> list[TableSpec]:
    """Returns the planner's description of all tables of a model.

    The number of rows is taken from `rows`, else from `rows=` of the table, else from the present
    size.
    """
    given, found = dict(rows or {}), []
    for table, size in tables_with_sizes(model):
        count = given.pop(table.name, None) or table.rows or size
        if not count:
            raise ConfigError(
                f"table {table.name!r} has no rows=, and no rows yet; say how many it will have: "
                f"hr.Table({table.name!r}, {table.dim}, rows=...), or give "
                f"rows={{{table.name!r}: ...}}."
            )
        found.append(spec_of(table, count))
    for name in given:
        unknown("table", name, [spec.name for spec in found])
    return found


def tables_with_sizes(model: nn.Module) -> list[tuple[Table, int]]:
    """Returns every table of a model, with the number of its rows in this process."""
    if not isinstance(model, nn.Module):
        raise DtypeError(f"plan of a {type(model).__name__}; pass an nn.Module.")
    collections = collections_of(model)
    if not collections:
        raise InputError("plan of a model without EmbeddingBags or Embeddings.")
    found = [
        (table, 0 if one.servers is not None else one.table(table.name).size())
        for one in collections
        for table in one.tables
    ]
    _refuse_twins([table for table, _ in found])
    return found


def _refuse_twins(tables: Sequence[Table]) -> None:
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"two tables of the model are named {name!r}; names must differ in a model."
            )


def _optimizer(table: Table) -> str:
    """Returns the name of the optimizer; with several segments, that with the most states."""
    kinds = [s.optimizer for s in table.resolve().segments if s.optimizer is not None]
    most = max(kinds, key=lambda kind: len(kind.rule().states))
    name = type(most).__name__.lower()
    return _PUBLISHED_NAMES.get(name, name)


def _counter_rows(table: Table, rows: int) -> int:
    """Returns how many ids the admission rule counts; 0 if it counts none."""
    rule = table.admit
    if not isinstance(rule, Count | Within) or rule.n == 1:
        return 0
    return rule.window_ids if isinstance(rule, Within) else rows


def plan(
    model: nn.Module,
    topology: Topology,
    *,
    rows: Mapping[str, int] | None = None,
    batch: int = 4096,
    calibration: Calibration | None = None,
    reserve: Reserve | None = None,
    pin: Mapping[str, str] | None = None,
) -> Plan:
    """Returns a plan of where each table of the model is placed, which `hr.distribute` can follow.

    The size of a table is given in `rows` here or by `rows=` of its hr.Table; otherwise it is the
    present number of rows. Its `dist_type` does not change. `batch` is the number of samples per
    rank and step. By default the reserve is a share of both memories, plus the memory of the dense
    weights and of the batches in progress. `pin` sets the mode of tables by name, or one option
    such as "CACHING@0.1". `hr.planner.plan`, which takes TableSpecs, has more parameters.

    >>> import hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("item", 16, rows=1_000_000, dist_type="roundrobin")])
    >>> machine = hr.planner.Topology(world=2, ddr_per_machine=2**33, device="cpu")
    >>> placed = hr.plan(model, machine).of("item")
    >>> placed.mode.value, placed.dist_type, placed.rows_per_rank >= 500_000
    ('HOST_ONLY', 'roundrobin', True)
    """
    tables = specs_of(model, rows)
    if reserve is None:
        reserve = reserve_for(
            topology,
            dense_bytes=_dense_bytes(model),
            ids_per_sample=[f.ids_per_sample for table in tables for f in table.features],
            batch=batch,
        )
    return make_plan.plan(tables, topology, calibration, reserve, batch=batch, pin=pin)


def _dense_bytes(model: nn.Module) -> int:
    """Returns the bytes of dense weights, gradients, optimizer states and buffers on a rank."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    return dense_size(weights, buffers)


_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """The owners of the rows of one table, and the bytes of a row. `owner` is a formula of the id.

    `rows` is the number that the user gave, or None. `rows_per_rank` is an equal share of it.
    """

    name: str
    dim: int
    dist_type: str
    ranks: tuple[int, ...]
    owner: str
    rows: int | None
    rows_per_rank: int | None
    row_bytes: int  # of the values only
    state_bytes: int  # of the optimizer states
    optimizer: str
    features: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as a dict that JSON can hold."""
        return {**asdict(self), "ranks": list(self.ranks), "features": list(self.features)}


def plain_plan(tables: Sequence[Table], ranks: int) -> list[TablePlan]:
    """Returns how `hr.distribute` places these tables on `ranks` ranks. It creates no table.

    >>> (found,) = plain_plan([Table("item", 16, rows=1000)], 4)
    >>> found.owner, found.rows_per_rank, found.row_bytes, found.state_bytes
    ('mix64(id) mod 4', 250, 64, 64)
    """
    return [_planned(table, ranks) for table in tables]


def _planned(table: Table, ranks: int) -> TablePlan:
    config = table.resolve()
    rules = dict.fromkeys(type(s.optimizer).__name__ for s in config.segments)
    return TablePlan(
        name=table.name,
        dim=table.dim,
        dist_type=table.dist_type,
        ranks=tuple(range(ranks)),
        owner=Router(table.dist_type, ranks, rows=table.rows).formula,
        rows=table.rows,
        rows_per_rank=None if table.rows is None else -(-table.rows // ranks),
        row_bytes=_FLOAT_BYTES * table.dim,
        state_bytes=_FLOAT_BYTES * RowLayout(config).state_floats,
        optimizer=", ".join(rules),
        features=tuple(table.features),
    )
