"""Reads a manifest from an untrusted source: every field is checked, and errors name the field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args

from ...core import checks
from ...core.errors import CheckpointError, CheckpointMissingError, ConfigError
from ...routing.router import SUPPORTED_DIST_TYPES
from ..optimizers import BiasCorrection
from .files import read_plain
from .manifest import (
    FORMAT,
    MANIFEST,
    VERSION,
    BlobEntry,
    CheckpointManifest,
    FileEntry,
    Routing,
    SavedTableEntry,
    SegmentSchema,
    StateSchema,
    TableSchema,
    checksum_of,
    is_sealed,
)

_LARGEST_BYTES = 2**28  # about the size of a manifest with a million files
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def read_manifest(folder: Path) -> CheckpointManifest:
    """Returns the manifest of the checkpoint in `folder`."""
    path = folder / MANIFEST
    if not has_manifest(folder):
        raise CheckpointMissingError(
            f"{folder} holds no complete checkpoint: there is no {MANIFEST}. A save that was "
            f"stopped leaves none; use an older checkpoint."
        )
    return parse_manifest(read_plain(path, _LARGEST_BYTES + 1), path)


def has_manifest(folder: Path) -> bool:
    """Returns whether anything exists at the path of the folder's manifest."""
    path = folder / MANIFEST
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a name that is too long or contains NUL
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    return True


def parse_manifest(data: bytes, path: Path) -> CheckpointManifest:
    """Returns the manifest in `data`, which was read from `path`."""
    if len(data) > _LARGEST_BYTES:
        raise CheckpointError(
            f"{path} has more than {_LARGEST_BYTES} bytes; no manifest is that large."
        )
    if not is_sealed(data):
        raise CheckpointError(
            f"{path} is damaged: its bytes do not have the checksum it ends with. Use an older "
            f"checkpoint, or a copy of this one."
        )
    return _ManifestReader(path, checksum_of(data)).manifest(plain_json(data, path))


def read_schema(where: Path, at: str, value: object) -> TableSchema:
    """Returns the schema of a table; errors name `where` and `at`."""
    return _ManifestReader(where, "").schema(at, value)


def plain_json(data: bytes, where: object) -> Any:
    """Parses a JSON document from an untrusted source."""
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is no JSON: {error}.") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError(f"a key occurs twice among {sorted(key for key, _ in pairs)}")
    return values


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


class _ManifestReader:
    """Checks one document. `at` is the path of a value inside it, for error messages."""

    def __init__(self, path: Path, checksum: str) -> None:
        self.path, self.checksum = path, checksum

    def fail(self, at: str, value: object, rule: str) -> NoReturn:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise CheckpointError(f"{self.path}: {at} is {shown}; {rule}.")

    def fields(self, at: str, value: object, needed: str, optional: str = "") -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.fail(at, value, "it must be an object")
        missing = set(needed.split()) - set(value)
        if missing:
            self.fail(f"{at}.{min(missing)}", None, "it is missing")
        extra = set(value) - set(needed.split()) - set(optional.split())
        if extra:
            self.fail(f"{at}.{min(extra)}", value[min(extra)], "no such field is known")
        return value

    def count(self, at: str, value: object, least: int = 0, most: int = 2**63 - 1) -> int:
        if type(value) is not int or not least <= value <= most:
            self.fail(at, value, f"it must be a whole number in {least}..{most}")
        return value

    def text(self, at: str, value: object) -> str:
        if not isinstance(value, str) or not value:
            self.fail(at, value, "it must be a non-empty string")
        return value

    def one_of(self, at: str, value: object, words: Iterable[str]) -> str:
        known = list(words)
        if not isinstance(value, str) or value not in known:
            self.fail(at, value, f"it must be one of {', '.join(known)}")
        return value

    def matching(self, at: str, value: object, pattern: re.Pattern[str], rule: str) -> str:
        if not isinstance(value, str) or not pattern.match(value):
            self.fail(at, value, rule)
        return value

    def items(self, at: str, value: object, read: Callable[[str, Any], Any]) -> tuple[Any, ...]:
        if not isinstance(value, list):
            self.fail(at, value, "it must be a list")
        return tuple(read(f"{at}[{i}]", item) for i, item in enumerate(value))

    def manifest(self, values: object) -> CheckpointManifest:
        if isinstance(values, dict):  # first, so that a newer format is reported as such
            self.one_of("format", values.get("format"), [FORMAT])
            if type(values.get("version")) is not int or values["version"] != VERSION:
                self.fail("version", values.get("version"), f"this release reads {VERSION}")
        needed = "format version kind number parent step metadata router tables files blobs"
        doc = self.fields("manifest", values, needed + " checksum")
        kind = self.one_of("kind", doc["kind"], ["base", "increment"])
        number = self.count("number", doc["number"], 1 if kind == "increment" else 0)
        if kind == "base" and number:
            self.fail("number", number, "a base has number 0")
        if kind == "increment" or doc["parent"] is not None:
            self.sha256("parent", doc["parent"])
        if not isinstance(doc["metadata"], dict):
            self.fail("metadata", doc["metadata"], "it must be an object")
        found = CheckpointManifest(
            routing=self.routing(doc["router"]),
            tables=self.tables(doc["tables"]),
            files=self.items("files", doc["files"], self.file),
            blobs=self.items("blobs", doc["blobs"], self.blob),
            number=number,
            parent=doc["parent"],
            step=self.count("step", doc["step"]),
            metadata=doc["metadata"],
            checksum=self.checksum,
        )
        self.consistent(found)
        return found

    def sha256(self, at: str, value: object) -> str:
        return self.matching(at, value, _SHA256, "it must be 64 hexadecimal digits")

    def routing(self, value: object) -> Routing:
        router = self.fields("router", value, "shards", "dist_type rank0_empty")
        dist_type = router.get("dist_type", "roundrobin")
        empty = router.get("rank0_empty", False)
        if not isinstance(empty, bool):
            self.fail("router.rank0_empty", empty, "it must be true or false")
        return Routing(
            self.one_of("router.dist_type", dist_type, SUPPORTED_DIST_TYPES),
            self.count("router.shards", router["shards"], 2 if empty else 1),
            empty,
        )

    def tables(self, value: object) -> dict[str, SavedTableEntry]:
        if not isinstance(value, dict):
            self.fail("tables", value, "it must be an object")
        return {name: self.table(f"tables[{name!r}]", entry) for name, entry in value.items()}

    def table(self, at: str, value: object) -> SavedTableEntry:
        rule = "dist_type dist_rows dist_bounds also slot_key"
        entry = self.fields(at, value, "schema rows deletions config", rule)
        if not isinstance(entry["config"], dict | None):
            self.fail(f"{at}.config", entry["config"], "it must be an object or null")
        return SavedTableEntry(
            self.schema(f"{at}.schema", entry["schema"]),
            self.count(f"{at}.rows", entry["rows"]),
            self.count(f"{at}.deletions", entry["deletions"]),
            entry["config"],
            *self.rule(at, entry),
            self.items(f"{at}.also", entry.get("also", []), self.text),
            self.slot_key(f"{at}.slot_key", entry),
        )

    def schema(self, at: str, value: object) -> TableSchema:
        schema = self.fields(at, value, "segments", "order")
        segments = self.items(f"{at}.segments", schema["segments"], self.segment)
        dim = sum(segment.dim for segment in segments)
        if not 1 <= dim <= checks.MAX_DIM:
            self.fail(at, dim, f"the dims must add up to 1..{checks.MAX_DIM}")
        order = self.text(f"{at}.order", schema["order"]) if "order" in schema else None
        return TableSchema(segments, order)

    def rule(
        self, at: str, entry: Mapping[str, Any]
    ) -> tuple[str | None, int | None, tuple[int, ...] | None]:
        """Returns the routing rule that a table names; None for fields that it leaves out."""
        rule, rows, bounds = (entry.get(f"dist_{name}") for name in ("type", "rows", "bounds"))
        if "dist_type" in entry:
            self.one_of(f"{at}.dist_type", rule, SUPPORTED_DIST_TYPES)
        if "dist_rows" in entry:
            self.count(f"{at}.dist_rows", rows, 1)
        if "dist_bounds" in entry:
            bounds = self.items(f"{at}.dist_bounds", bounds, self.bound)
        return rule, rows, bounds

    def slot_key(self, at: str, entry: Mapping[str, Any]) -> int | None:
        """Returns the slot key of a table; old releases saved none."""
        if "slot_key" not in entry:
            return None
        return self.count(at, entry["slot_key"], most=2**64 - 1)

    def bound(self, at: str, value: object) -> int:
        return self.count(at, value, most=2**64 - 1)

    def segment(self, at: str, value: object) -> SegmentSchema:
        segment = self.fields(at, value, "dim optimizer states", "bias_correction")
        kind = segment["optimizer"]
        states = self.items(f"{at}.states", segment["states"], self.state)
        if len({state.name for state in states}) != len(states):
            self.fail(f"{at}.states", [s.name for s in states], "a state occurs twice")
        kind = None if kind is None else self.text(f"{at}.optimizer", kind)
        counted = segment.get("bias_correction", SegmentSchema.default_correction(kind))
        if counted is not None:
            self.one_of(f"{at}.bias_correction", counted, list(get_args(BiasCorrection)))
        return SegmentSchema(
            self.count(f"{at}.dim", segment["dim"], 1, checks.MAX_DIM), kind, states, counted
        )

    def state(self, at: str, value: object) -> StateSchema:
        state = self.fields(at, value, "name dtype per")
        return StateSchema(
            self.text(f"{at}.name", state["name"]),
            self.one_of(f"{at}.dtype", state["dtype"], ["float32", "int64"]),
            self.one_of(f"{at}.per", state["per"], ["value", "row"]),
        )

    def file_name(self, at: str, value: object) -> str:
        rule = "it must be a name in the checkpoint's own folder, made of letters, digits, _ . -"
        return self.matching(at, value, _FILE_NAME, rule)

    def file(self, at: str, value: object) -> FileEntry:
        file = self.fields(at, value, "file table shard content rows bytes sha256")
        return FileEntry(
            self.file_name(f"{at}.file", file["file"]),
            self.text(f"{at}.table", file["table"]),
            self.count(f"{at}.shard", file["shard"]),
            self.one_of(f"{at}.content", file["content"], ["rows", "deletions"]),
            self.count(f"{at}.rows", file["rows"]),
            self.count(f"{at}.bytes", file["bytes"]),
            self.sha256(f"{at}.sha256", file["sha256"]),
        )

    def blob(self, at: str, value: object) -> BlobEntry:
        blob = self.fields(at, value, "name file bytes sha256")
        return BlobEntry(
            self.text(f"{at}.name", blob["name"]),
            self.file_name(f"{at}.file", blob["file"]),
            self.count(f"{at}.bytes", blob["bytes"]),
            self.sha256(f"{at}.sha256", blob["sha256"]),
        )

    def consistent(self, found: CheckpointManifest) -> None:
        """Raises if files, tables, shards and counts contradict each other."""
        if len(found.names()) != len(found.files) + len(found.blobs):
            self.fail("files", sorted(found.names()), "a file occurs twice")
        if MANIFEST in found.names():
            self.fail("files", MANIFEST, "a manifest does not list itself")
        if len({blob.name for blob in found.blobs}) != len(found.blobs):
            self.fail("blobs", [blob.name for blob in found.blobs], "a name occurs twice")
        shards: dict[str, list[int]] = {name: [] for name in found.tables}
        sums = {(name, content): 0 for name in found.tables for content in ("rows", "deletions")}
        for i, file in enumerate(found.files):
            if file.table not in found.tables:
                self.fail(f"files[{i}].table", file.table, "tables has no such table")
            if file.shard >= found.routing.shards:
                rule = f"the router has {found.routing.shards} shards"
                self.fail(f"files[{i}].shard", file.shard, rule)
            if file.content == "deletions" and found.kind == "base":
                self.fail(f"files[{i}].content", file.content, "a base deletes nothing")
            sums[file.table, file.content] += file.rows
            if file.content == "rows":
                shards[file.table].append(file.shard)
        for name, table in found.tables.items():
            try:
                found.router_of(name)
            except ConfigError as error:
                raise CheckpointError(f"{self.path}: tables[{name!r}]: {error}") from error
            self.complete(found, name, sorted(shards[name]))
            for content, stated in (("rows", table.rows), ("deletions", table.deletions)):
                if sums[name, content] != stated:
                    at = f"tables[{name!r}].{content}"
                    self.fail(at, stated, f"its files hold {sums[name, content]}")

    def complete(self, found: CheckpointManifest, name: str, shards: list[int]) -> None:
        """Raises unless a base has one file of rows per shard, or an increment at most one."""
        if len(set(shards)) != len(shards):
            self.fail(f"files of table {name!r}", shards, "a shard occurs twice")
        if found.kind == "base" and len(shards) != found.routing.shards:
            rule = f"every one of the {found.routing.shards} shards must have one"
            self.fail(f"shards of the files of table {name!r}", shards, rule)
