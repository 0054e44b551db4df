"""Tables of a model as the planner sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from ..core.checks import unknown
from ..core.errors import ConfigError, DtypeError, InputError
from ..planner.problem.key_stats import KeyStats
from ..planner.problem.table_spec import Feature, TableSpec
from ..tables.admission import Count, Within
from ..tables.table import Table
from .collection import collections_of

_PUBLISHED_NAMES = {"rowadagrad": "rowwise_adagrad"}


def spec_of(
    table: Table,
    rows: int,
    *,
    ids_per_sample: Mapping[str, float] | None = None,
    stats: KeyStats | None = None,
) -> TableSpec:
    """One table with its size; `ids_per_sample` by feature, 1 where nothing is said.

    The rule by which ranks share its ids is the table's own.

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
    """All tables of a model. Rows are as given, as the table says, or those that are there now."""
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
    """Every table of a model, and the rows that this process has of it."""
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
    """The name of its optimizer; of several segments, of the one with the most states."""
    kinds = [s.optimizer for s in table.resolve().segments if s.optimizer is not None]
    most = max(kinds, key=lambda kind: len(kind.rule().states))
    name = type(most).__name__.lower()
    return _PUBLISHED_NAMES.get(name, name)


def _counter_rows(table: Table, rows: int) -> int:
    """Ids that its admission counts: those of a window, or as many as it has rows."""
    rule = table.admit
    if not isinstance(rule, Count | Within) or rule.n == 1:
        return 0
    return rule.window_ids if isinstance(rule, Within) else rows
