"""The manifest of a checkpoint: what is in it, where, and with which checksums."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.errors import InputError
from ...routing.router import Router
from .schema import Column, TableSchema, deletion_columns

MANIFEST = "manifest.json"
FORMAT, VERSION = "hedgerow checkpoint", 1
DENSE = "hedgerow dense"
"""The name, among the blobs, of a model's dense part: a file of the safetensors format."""
_DENSE_FOLDER = re.compile(r"dense-[0-9a-f]{12}\Z")
_TAIL = ',\n "checksum": "{}"\n}}\n'
_TAIL_BYTES = len(_TAIL.format("0" * 64))


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One Arrow file: `content` is "rows", or "deletions" in an increment."""

    file: str
    table: str
    shard: int
    content: str
    rows: int
    file_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BlobEntry:
    """One file of opaque bytes: the state of a filter, for example."""

    name: str
    file: str
    file_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One table: its schema, its rows over all shards, its config, its owner rule.

    The config is None where it cannot be written, because a rate is a function. `dist_type` is None
    in old manifests, which have one rule for all tables. `dist_rows` and `dist_bounds` are `rows`
    and `bounds` of the router. `also` are other names under which a load finds it. `slot_key` is
    the one that the table had.
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
        """The columns of its files of that content."""
        return deletion_columns() if content == "deletions" else self.schema.columns()

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
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
    """Over how many shards the files are, and the owner rule of tables that name none.

    An absent `dist_type` reads as roundrobin.
    """

    dist_type: str
    shards: int
    rank0_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything about one checkpoint or increment but its rows.

    `number` is 0 for a base and counts increments from 1; `parent` is the checksum of the manifest
    before an increment, or of the one whose rows a compacted base repeats. `checksum` is that of
    this manifest as it stands in its file.
    """

    routing: Routing
    tables: dict[str, TableEntry]
    files: tuple[FileEntry, ...]
    blobs: tuple[BlobEntry, ...] = ()
    number: int = 0
    parent: str | None = None
    step: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    checksum: str = ""

    @property
    def kind(self) -> str:
        """`base` or `increment`."""
        return "increment" if self.number else "base"

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(table.rows for table in self.tables.values())

    @property
    def data_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(f.file_bytes for f in self.files) + sum(b.file_bytes for b in self.blobs)

    def saved_as(self) -> str:
        """The checksum under which these rows were saved from tables: a compacted base repeats."""
        return self.parent if self.kind == "base" and self.parent else self.checksum

    @property
    def dense(self) -> BlobEntry | None:
        """The dense part of a model, if these are the rows of one."""
        return next((blob for blob in self.blobs if blob.name == DENSE), None)

    @property
    def dense_folder(self) -> str | None:
        """The folder of the dense part as version 0.1 wrote it."""
        name = self.metadata.get("dense")
        if self.dense is None and isinstance(name, str) and _DENSE_FOLDER.match(name):
            return name
        return None

    def names(self) -> set[str]:
        """The files it needs."""
        return {f.file for f in self.files} | {b.file for b in self.blobs}

    def keeps(self) -> set[str]:
        """The files and folders that belong to it."""
        folder = self.dense_folder
        return self.names() | ({folder} if folder else set())

    def dist_type_of(self, table: str) -> str:
        """The word for the owner rule of a table."""
        entry = self.tables.get(table)
        return (
            self.routing.dist_type if entry is None else entry.dist_type or self.routing.dist_type
        )

    def dist_types(self) -> tuple[str, ...]:
        """The rules of all tables, each once."""
        found = dict.fromkeys(self.dist_type_of(name) for name in self.tables)
        return tuple(found) or (self.routing.dist_type,)

    def router_of(self, table: str) -> Router | None:
        """The owner function of a table's files; None where `continuous` came without rows."""
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
        """Fit for JSON, without the checksum."""
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

    def sealed(self) -> tuple[Manifest, bytes]:
        """The manifest with its checksum, and the bytes of its file."""
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
    """A JSON object with its checksum as the last entry: the SHA-256 of all bytes before it."""
    body = text.removesuffix("}").rstrip().encode()
    return body + _TAIL.format(hashlib.sha256(body).hexdigest()).encode()


def checksum_of(data: bytes) -> str:
    """The checksum that the end of a manifest states."""
    return data[-_TAIL_BYTES:].decode(errors="replace").split('"')[3]


def is_sealed(data: bytes) -> bool:
    """Whether not one byte has changed since `seal`."""
    body = data[:-_TAIL_BYTES]
    return data[len(body) :] == _TAIL.format(hashlib.sha256(body).hexdigest()).encode()
