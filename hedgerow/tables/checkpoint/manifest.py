"""The manifest of a checkpoint: its tables, their columns, and the files with their checksums."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.errors import InputError
from ...routing.router import Router
from ..config import TableConfig
from ..layout import RowLayout
from ..optimizers import Adam, Optimizer
from .blobs import order_rule

ID, TIME, ROW, ORDER = "id", "ts", "row", "order"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a file: one number per row if `width` is None, else `width` numbers per row."""

    name: str
    dtype: str  # float32 or int64
    width: int | None = None


@dataclass(frozen=True, slots=True)
class StateSchema:
    """One optimizer state: its name, its element type, and whether it is per value or per row."""

    name: str
    dtype: str
    per: str  # value or row


@dataclass(frozen=True, slots=True)
class SegmentSchema:
    """One segment: its number of columns, the kind of its optimizer, and its states.

    `optimizer` is None when serving. `bias_correction` is set for the Adam family only. Version 0.1
    had only "row" and did not write the field.
    """

    dim: int
    optimizer: str | None
    states: tuple[StateSchema, ...]
    bias_correction: str | None = None

    @staticmethod
    def of(dim: int, optimizer: Optimizer | None, states: Sequence[StateSchema]) -> SegmentSchema:
        """Returns the schema of a segment; `optimizer` is None when serving."""
        kind = None if optimizer is None else optimizer.kind
        counted = optimizer.bias_correction if isinstance(optimizer, Adam) else None
        return SegmentSchema(dim, kind, tuple(states), counted)

    @staticmethod
    def default_correction(optimizer: str | None) -> str | None:
        """Returns the bias correction that a file without this field means."""
        return "row" if optimizer in Adam.members() else None

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON; equal to that of version 0.1 if the meaning is equal."""
        states = [{"name": s.name, "dtype": s.dtype, "per": s.per} for s in self.states]
        found = {"dim": self.dim, "optimizer": self.optimizer, "states": states}
        if self.bias_correction != self.default_correction(self.optimizer):
            found["bias_correction"] = self.bias_correction
        return found


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The format of a table's rows in files; without rates, seeds and initializers.

    `order` is the rule of the column of marks, as `order_rule` names it; None without that column.

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
        """Returns the schema of a table's rows."""
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
        """The number of columns of a row."""
        return sum(segment.dim for segment in self.segments)

    def columns(self) -> tuple[Column, ...]:
        """Returns the columns of a file, in order."""
        named = [Column(ID, "int64"), Column(TIME, "int64"), Column(ROW, "float32", self.dim)]
        for i, segment in enumerate(self.segments):
            for state in segment.states:
                width = segment.dim if state.per == "value" else None
                named.append(Column(state_column(i, state.name), state.dtype, width))
        if self.order is not None:
            named.append(Column(ORDER, "int64"))
        return tuple(named)

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        order = {} if self.order is None else {"order": self.order}
        return {"segments": [segment.to_dict() for segment in self.segments], **order}


def state_column(segment: int, state: str) -> str:
    """Returns the name of a state's column.

    >>> state_column(1, "m")
    'state_1_m'
    """
    return f"state_{segment}_{state}"


def deletion_columns() -> tuple[Column, ...]:
    """Returns the columns of a file of deleted ids."""
    return (Column(ID, "int64"),)


def row_bytes(columns: Sequence[Column]) -> int:
    """Returns the bytes of one row in a file, without framing."""
    return sum((8 if c.dtype == "int64" else 4) * (c.width or 1) for c in columns)


MANIFEST = "manifest.json"
FORMAT, VERSION = "hedgerow checkpoint", 1
DENSE = "hedgerow dense"
"""The blob name of a model's dense part, which is a file in the safetensors format."""
_DENSE_FOLDER = re.compile(r"dense-[0-9a-f]{12}\Z")
_TAIL = ',\n "checksum": "{}"\n}}\n'
_TAIL_BYTES = len(_TAIL.format("0" * 64))


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One Arrow file. Its `content` is "rows", or "deletions" in an increment."""

    file: str
    table: str
    shard: int
    content: str
    rows: int
    file_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BlobEntry:
    """One file of arbitrary bytes, for example the state of a filter."""

    name: str
    file: str
    file_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SavedTableEntry:
    """One table: its schema, its rows over all shards, its config and its routing rule.

    - `config` is None if it cannot be written because a rate is a function.
    - `dist_type` is None in old manifests, which have one rule for all tables. `dist_rows` and
      `dist_bounds` are `rows` and `bounds` of the router.
    - `also` lists other names under which a load finds the table.
    - `slot_key` is the slot key of the saved table.
    """

    schema: TableSchema
    rows: int
    deletions: int = 0
    config: dict[str, Any] | None = None
    dist_type: str | None = None
    dist_rows: int | None = None
    dist_bounds: tuple[int, ...] | None = None
    also: tuple[str, ...] = ()
    slot_key: int | None = None

    def columns(self, content: str) -> tuple[Column, ...]:
        """Returns the columns of the table's files with this content."""
        return deletion_columns() if content == "deletions" else self.schema.columns()

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        rule = {
            "dist_type": self.dist_type,
            "dist_rows": self.dist_rows,
            "dist_bounds": None if self.dist_bounds is None else list(self.dist_bounds),
            "also": list(self.also) or None,
            "slot_key": self.slot_key,
        }
        return {
            "schema": self.schema.to_dict(),
            "rows": self.rows,
            "deletions": self.deletions,
            "config": self.config,
            **{name: value for name, value in rule.items() if value is not None},
        }


@dataclass(frozen=True, slots=True)
class Routing:
    """The number of shards of the files, and the routing rule of tables that name none.

    A missing `dist_type` in a file means roundrobin.
    """

    dist_type: str
    shards: int
    rank0_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """Everything about one checkpoint or increment except its rows.

    `number` is 0 for a base, and counts increments from 1. `parent` is the checksum of the
    preceding manifest; for a compacted base, it is that of the manifest whose rows it contains.
    `checksum` is that of this manifest's own file.
    """

    routing: Routing
    tables: dict[str, SavedTableEntry]
    files: tuple[FileEntry, ...]
    blobs: tuple[BlobEntry, ...] = ()
    number: int = 0
    parent: str | None = None
    step: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    checksum: str = ""

    @property
    def kind(self) -> str:
        """ "base" or "increment"."""
        return "increment" if self.number else "base"

    @property
    def rows(self) -> int:
        """The number of rows of all tables."""
        return sum(table.rows for table in self.tables.values())

    @property
    def data_bytes(self) -> int:
        """The bytes of all files except the manifest."""
        return sum(f.file_bytes for f in self.files) + sum(b.file_bytes for b in self.blobs)

    def saved_as(self) -> str:
        """Returns the checksum of the manifest that first saved these rows; compacting keeps it."""
        return self.parent if self.kind == "base" and self.parent else self.checksum

    @property
    def dense(self) -> BlobEntry | None:
        """The dense part of a model, if there is one."""
        return next((blob for blob in self.blobs if blob.name == DENSE), None)

    @property
    def dense_folder(self) -> str | None:
        """The folder of the dense part in the format of version 0.1, if there is one."""
        name = self.metadata.get("dense")
        if self.dense is None and isinstance(name, str) and _DENSE_FOLDER.match(name):
            return name
        return None

    def names(self) -> set[str]:
        """Returns the names of its files."""
        return {f.file for f in self.files} | {b.file for b in self.blobs}

    def keeps(self) -> set[str]:
        """Returns the names of the files and folders that belong to it."""
        folder = self.dense_folder
        return self.names() | ({folder} if folder else set())

    def dist_type_of(self, table: str) -> str:
        """Returns the `dist_type` of a table."""
        entry = self.tables.get(table)
        return (
            self.routing.dist_type if entry is None else entry.dist_type or self.routing.dist_type
        )

    def dist_types(self) -> tuple[str, ...]:
        """Returns the distinct `dist_type` values of all tables."""
        found = dict.fromkeys(self.dist_type_of(name) for name in self.tables)
        return tuple(found) or (self.routing.dist_type,)

    def router_of(self, table: str) -> Router | None:
        """Returns the router of a table's files; None for `continuous` without rows."""
        rule, shards, empty = (
            self.dist_type_of(table),
            self.routing.shards,
            self.routing.rank0_empty,
        )
        entry = self.tables.get(table)
        rows = None if entry is None else entry.dist_rows
        bounds = None if entry is None else entry.dist_bounds
        if rule == "continuous" and rows is None and bounds is None:
            return None
        return Router(rule, shards, rows=rows, bounds=bounds, rank0_empty=empty)

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON, without the checksum."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "number": self.number,
            "parent": self.parent,
            "step": self.step,
            "metadata": self.metadata,
            "router": {
                "dist_type": self.routing.dist_type,
                "shards": self.routing.shards,
                "rank0_empty": self.routing.rank0_empty,
            },
            "tables": {name: table.to_dict() for name, table in self.tables.items()},
            "files": [
                {
                    "file": f.file,
                    "table": f.table,
                    "shard": f.shard,
                    "content": f.content,
                    "rows": f.rows,
                    "bytes": f.file_bytes,
                    "sha256": f.sha256,
                }
                for f in self.files
            ],
            "blobs": [
                {"name": b.name, "file": b.file, "bytes": b.file_bytes, "sha256": b.sha256}
                for b in self.blobs
            ],
        }

    def sealed(self) -> tuple[CheckpointManifest, bytes]:
        """Returns the manifest with its checksum, and the bytes of its file."""
        try:
            text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"metadata is {_shown(self.metadata)}, which JSON cannot hold ({error}); use "
                f"strings, finite numbers, lists and dicts."
            ) from error
        data = seal(text)
        return replace(self, checksum=checksum_of(data)), data


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except RecursionError:
        return "too deep"
    return shown if len(shown) <= 200 else shown[:197] + "..."


def seal(text: str) -> bytes:
    """Returns a JSON object's bytes; its last entry is the SHA-256 of all bytes before it."""
    body = text.removesuffix("}").rstrip().encode()
    return body + _TAIL.format(hashlib.sha256(body).hexdigest()).encode()


def checksum_of(data: bytes) -> str:
    """Returns the checksum at the end of a manifest."""
    return data[-_TAIL_BYTES:].decode(errors="replace").split('"')[3]


def is_sealed(data: bytes) -> bool:
    """Returns whether no byte has changed since `seal`."""
    body = data[:-_TAIL_BYTES]
    return data[len(body) :] == _TAIL.format(hashlib.sha256(body).hexdigest()).encode()
