"""What the files of a table hold: its segments, its states, and the columns they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..config import TableConfig
from ..layout import RowLayout
from ..optimizer_base import Optimizer
from ..optimizers import Adam
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
    """One segment: its columns, the kind of its optimizer (None when serving), its states.

    `bias_correction` is that of the Adam family, None of others. Version 0.1 had only "row" and
    wrote nothing.
    """

    dim: int
    optimizer: str | None
    states: tuple[StateSchema, ...]
    bias_correction: str | None = None

    @staticmethod
    def of(dim: int, optimizer: Optimizer | None, states: Sequence[StateSchema]) -> SegmentSchema:
        """The schema of a segment that learns by `optimizer`, None when serving."""
        kind = None if optimizer is None else optimizer.kind
        counted = optimizer.bias_correction if isinstance(optimizer, Adam) else None
        return SegmentSchema(dim, kind, tuple(states), counted)

    @staticmethod
    def default_correction(optimizer: str | None) -> str | None:
        """What a file that says nothing about bias corrections means."""
        return "row" if optimizer in Adam.members() else None

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON; what version 0.1 meant is written as it wrote it."""
        states = [{"name": s.name, "dtype": s.dtype, "per": s.per} for s in self.states]
        found = {"dim": self.dim, "optimizer": self.optimizer, "states": states}
        if self.bias_correction != self.default_correction(self.optimizer):
            found["bias_correction"] = self.bias_correction
        return found


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
        return TableSchema(
            tuple(
                SegmentSchema.of(segment.dim, None if config.serving else segment.optimizer, own)
                for segment, own in zip(config.segments, states, strict=True)
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
        order = {} if self.order is None else {"order": self.order}
        return {"segments": [segment.to_dict() for segment in self.segments], **order}


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
