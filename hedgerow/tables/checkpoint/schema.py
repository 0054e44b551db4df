"""What the files of a table hold: its segments, its states, and the columns they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..config import TableConfig
from ..layout import RowLayout
from .order_blobs import order_rule

ID, TIME, ROW, ORDER = "id", "ts", "row", "order"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a file: plain if `width` is None, else `width` numbers a row."""

    name: str
    dtype: str  # float32 or int64
    width: int | None = None


@dataclass(frozen=True, slots=True)
class StateSchema:
    """One optimizer state: its name, element type, and whether a row has it once."""

    name: str
    dtype: str
    per: str  # value or row


@dataclass(frozen=True, slots=True)
class SegmentSchema:
    """One segment: its columns, the kind of its optimizer (None when serving), its states."""

    dim: int
    optimizer: str | None
    states: tuple[StateSchema, ...]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The shape of a table's rows in files. Rates, seeds and initializers are not part of it.

    `order` is the rule that a column of marks belongs to, as `order_rule` names it.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Adagrad
    >>> schema = TableSchema.of(TableConfig("t", (Segment(4, Zeros(), Adagrad()),)))
    >>> [column.name for column in schema.columns()]
    ['id', 'ts', 'row', 'state_0_sum']
    """

    segments: tuple[SegmentSchema, ...]
    order: str | None = None

    @staticmethod
    def of(config: TableConfig) -> TableSchema:
        """The schema of a table's rows."""
        states: list[list[StateSchema]] = [[] for _ in config.segments]
        for place in RowLayout(config).places:
            state = place.state
            states[place.segment].append(StateSchema(state.name, state.dtype, state.per))
        kinds = [
            None if config.serving or s.optimizer is None else s.optimizer.kind
            for s in config.segments
        ]
        return TableSchema(
            tuple(
                SegmentSchema(segment.dim, kind, tuple(own))
                for segment, kind, own in zip(config.segments, kinds, states, strict=True)
            ),
            None if config.serving else order_rule(config),
        )

    @property
    def dim(self) -> int:
        """Columns of a row."""
        return sum(segment.dim for segment in self.segments)

    def columns(self) -> tuple[Column, ...]:
        """The columns of a file, in order."""
        named = [Column(ID, "int64"), Column(TIME, "int64"), Column(ROW, "float32", self.dim)]
        for i, segment in enumerate(self.segments):
            for state in segment.states:
                width = segment.dim if state.per == "value" else None
                named.append(Column(state_column(i, state.name), state.dtype, width))
        if self.order is not None:
            named.append(Column(ORDER, "int64"))
        return tuple(named)

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "segments": [
                {
                    "dim": segment.dim,
                    "optimizer": segment.optimizer,
                    "states": [
                        {"name": s.name, "dtype": s.dtype, "per": s.per} for s in segment.states
                    ],
                }
                for segment in self.segments
            ],
            **({} if self.order is None else {"order": self.order}),
        }


def state_column(segment: int, state: str) -> str:
    """The column of a state.

    >>> state_column(1, "m")
    'state_1_m'
    """
    return f"state_{segment}_{state}"


def deletion_columns() -> tuple[Column, ...]:
    """The columns of a file of deleted ids."""
    return (Column(ID, "int64"),)


def row_bytes(columns: Sequence[Column]) -> int:
    """Bytes of one row in a file, without framing."""
    return sum((8 if c.dtype == "int64" else 4) * (c.width or 1) for c in columns)
