"""The plain sharding plan: every table over all ranks, by its own `dist_type`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..routing.router import Router
from ..tables.layout import RowLayout
from ..tables.table import Table

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """Who owns the rows of one table, and what a row takes. `owner` is a formula of the id.

    `rows` is what the user said, None if nothing; `rows_per_rank` the fair share of them.
    """

    name: str
    dim: int
    dist_type: str
    ranks: tuple[int, ...]
    owner: str
    rows: int | None
    rows_per_rank: int | None
    row_bytes: int  # values alone
    state_bytes: int  # of the optimizer
    optimizer: str
    features: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {**asdict(self), "ranks": list(self.ranks), "features": list(self.features)}


def plain_plan(tables: Sequence[Table], ranks: int) -> list[TablePlan]:
    """What `hr.distribute` does with these tables on so many ranks; it makes no table.

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
