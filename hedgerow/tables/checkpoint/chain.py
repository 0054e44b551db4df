"""A base and its increments read as one: the newest row of each id, and statistics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core import checks
from ...core.errors import CheckpointError, CheckpointMissingError
from ...core.files import local_path
from ...core.ids import distinct_ids
from ...routing.router import Router
from .files import check_file, read_plain
from .manifest import (
    DENSE,
    ID,
    MANIFEST,
    ORDER,
    ROW,
    TIME,
    CheckpointManifest,
    FileEntry,
    SavedTableEntry,
)
from .manifest_reader import has_manifest, read_manifest
from .shard_file import SavedRows, read_shard
from .workers import Meter, Workers
from .writer import THREADS

_NUMBER = re.compile(r"\d{8}\Z", re.ASCII)


INCREMENTS = re.compile(r"increments-[0-9a-f]{12}")
"""The names of folders of increments."""


def increments_folder(folder: Path, base: CheckpointManifest) -> Path:
    """Returns the folder of this base's increments. A replaced base had another folder."""
    return folder / f"increments-{base.checksum[:12]}"


@dataclass(frozen=True, slots=True, eq=False)
class ChainFile:
    """One file of rows, and the ids that later increments changed or deleted."""

    path: Path
    table: SavedTableEntry
    file: FileEntry
    router: Router | None  # None if the manifest lacks what the rule needs
    later: np.ndarray  # sorted

    def rows(self) -> Iterator[SavedRows]:
        """Yields the rows that no later increment changed or deleted."""
        columns = self.table.columns(self.file.content)
        for rows in read_shard(self.path, columns, self.file.rows):
            self._check_owners(rows)
            yield rows.take(~_among(rows.ids, self.later)) if len(self.later) else rows

    def _check_owners(self, rows: SavedRows) -> None:
        if self.router is None or self.router.shards == 1:  # a single shard owns all rows
            return
        strays = self.router.owners(torch.from_numpy(rows.ids)).numpy() != self.file.shard
        if strays.any():
            raise CheckpointError(
                f"{self.path} holds id {rows.ids[strays][0]}, which does not belong to shard "
                f"{self.file.shard} under {self.router.dist_type} over {self.router.shards}."
            )


@dataclass(frozen=True, eq=False)
class Chain:
    """The manifests of a checkpoint folder; they are checked to follow one another."""

    folder: Path
    base: CheckpointManifest
    increments: tuple[CheckpointManifest, ...]
    old_names: Mapping[str, str] = field(default_factory=dict)  # of tables renamed by `as_live`

    @staticmethod
    def read(folder: Path, increments: int | None = None) -> Chain:
        """Reads base and increments: all complete ones, or exactly the first `increments`."""
        base = read_manifest(local_path(folder))
        if base.kind != "base":
            raise CheckpointError(
                f"{folder} holds increment {base.number}, not a base; name the folder of the base."
            )
        found = _read_increments(increments_folder(folder, base), base)
        if increments is None:
            return Chain(folder, base, found)
        if checks.count("increments", increments) > len(found):
            raise CheckpointMissingError(
                f"{folder} has {len(found)} increments; {increments} were asked for, so "
                f"increment {len(found) + 1} is missing."
            )
        return Chain(folder, base, found[:increments])

    def as_live(self, live: Mapping[str, Sequence[str]]) -> Chain:
        """Returns the chain with tables renamed to the names of the live tables.

        `live` holds the other names of each live table. A saved table is matched under its own name
        first, and then under any other name that either side has for it.
        """
        saved = {name: entry.also for name, entry in self.tables.items()}
        free = [name for name in saved if name not in live]
        renames: dict[str, str] = {}
        for name, others in live.items():
            mine = {name, *others}
            found = [one for one in free if one in mine or mine & set(saved[one])]
            if name not in saved and found:
                renames[found[0]] = name
                free.remove(found[0])
        if not renames:
            return self
        base, *later = (_renamed(manifest, renames) for manifest in self.manifests)
        return Chain(self.folder, base, tuple(later), {new: old for old, new in renames.items()})

    @property
    def last(self) -> CheckpointManifest:
        """The newest manifest."""
        return self.increments[-1] if self.increments else self.base

    @property
    def manifests(self) -> tuple[CheckpointManifest, ...]:
        """All manifests, the base first."""
        return (self.base, *self.increments)

    def folder_of(self, manifest: CheckpointManifest) -> Path:
        """Returns the folder of a manifest's files."""
        if manifest.kind == "base":
            return self.folder
        return increments_folder(self.folder, self.base) / f"{manifest.number:08d}"

    @cached_property
    def tables(self) -> dict[str, SavedTableEntry]:
        """Every table's entry in its newest manifest.

        Its `rows` counts the rows of that manifest alone.
        """
        found: dict[str, SavedTableEntry] = {}
        for manifest in self.manifests:
            for name, entry in manifest.tables.items():
                if name in found and found[name].schema != entry.schema:
                    raise CheckpointError(
                        f"{self.folder_of(manifest) / MANIFEST}: tables[{name!r}].schema differs "
                        f"from the one of an earlier manifest; save a new base after such a change."
                    )
                found[name] = entry
        return found

    def verify(self, meter: Meter | None = None, share: tuple[int, int] = (0, 1)) -> None:
        """Checks the checksum of every file, or of share i of n if `share` is (i, n)."""
        files = [
            (self.folder_of(m) / f.file, f.file_bytes, f.sha256, rows)
            for m in self.manifests
            for f, rows in [*((f, f.rows) for f in m.files), *((b, 0) for b in m.blobs)]
        ]

        def prove(file: tuple[Path, int, str, int]) -> None:
            check_file(*file[:3])
            if meter is not None:
                meter.add(file[3], file[1])

        with Workers(THREADS) as pool:
            for _ in pool.map(prove, files[share[0] :: share[1]]):
                continue

    def parts(self, table: str) -> list[ChainFile]:
        """Returns the files of a table's rows. Call `verify` first."""
        later = np.empty(0, np.int64)
        parts: list[ChainFile] = []
        for manifest in reversed(self.manifests):
            if table not in manifest.tables:
                continue
            folder, entry = self.folder_of(manifest), manifest.tables[table]
            for file in manifest.files:
                if file.table == table and file.content == "rows":
                    router = manifest.router_of(table)
                    parts.append(ChainFile(folder / file.file, entry, file, router, later))
            if manifest.kind == "increment":
                later = distinct_ids(np.concatenate([later, self._changed(manifest, table)]))
        return parts

    def rows(self, table: str) -> Iterator[SavedRows]:
        """Yields all rows of a table, each id once."""
        for part in self.parts(table):
            yield from part.rows()

    def blobs(self) -> dict[str, bytes]:
        """Returns the newest bytes under each name, without the dense part, which may be large."""
        found: dict[str, bytes] = {}
        for manifest in self.manifests:
            for blob in manifest.blobs:
                if blob.name != DENSE:
                    found[blob.name] = read_plain(self.folder_of(manifest) / blob.file)
        return found

    def _changed(self, manifest: CheckpointManifest, table: str) -> np.ndarray:
        """Returns the ids that an increment changed or deleted; raises if one occurs twice."""
        folder, ids = self.folder_of(manifest), [np.empty(0, np.int64)]
        for file in manifest.files:
            if file.table == table:
                columns = manifest.tables[table].columns(file.content)
                ids += [rows.ids for rows in read_shard(folder / file.file, columns, file.rows)]
        together = np.concatenate(ids)
        unique, counts = np.unique(together, return_counts=True)
        if len(unique) != len(together):
            raise CheckpointError(
                f"{folder}: id {unique[counts > 1][0]} of table {table!r} occurs twice."
            )
        return unique


def _renamed(manifest: CheckpointManifest, names: Mapping[str, str]) -> CheckpointManifest:
    tables = {names.get(name, name): entry for name, entry in manifest.tables.items()}
    files = tuple(replace(file, table=names.get(file.table, file.table)) for file in manifest.files)
    return replace(manifest, tables=tables, files=files)


def _among(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return known[places] == ids


def _read_increments(folder: Path, base: CheckpointManifest) -> tuple[CheckpointManifest, ...]:
    """Returns the increments of `base`; an incomplete one at the end is an interrupted save."""
    if not folder.is_dir():
        return ()
    named = sorted(path for path in folder.iterdir() if _NUMBER.match(path.name))
    for path in (folder, *named):
        if path.is_symlink() or not path.is_dir():
            raise CheckpointError(f"{path} is not a folder; an increment is a folder, not a link.")
    while named and not has_manifest(named[-1]):
        named.pop()
    found: list[CheckpointManifest] = []
    parent = base
    for number, path in enumerate(named, start=1):
        if int(path.name) != number:
            raise CheckpointError(
                f"{folder}: increment {number} is missing, but increment {int(path.name)} exists. "
                f"Restore it from a copy, or load with increments={number - 1}."
            )
        if not has_manifest(path):
            raise CheckpointError(
                f"{path} is incomplete: it has no {MANIFEST}, but later increments have one."
            )
        manifest = read_manifest(path)
        if any(manifest.checksum == earlier.checksum for earlier in found):
            raise CheckpointError(
                f"{path} repeats increment {manifest.number}; increment {number} was expected."
            )
        if manifest.number != number or manifest.parent != parent.checksum:
            raise CheckpointError(
                f"{path} is out of order: it is increment {manifest.number} after the manifest "
                f"{manifest.parent}; increment {number} after {parent.checksum} was expected."
            )
        found.append(manifest)
        parent = manifest
    return tuple(found)


@dataclass(frozen=True, slots=True)
class FoundRow:
    """One row as stored in the files."""

    id: int
    shard: int
    ts: int
    columns: dict[str, Any]  # row and states, as numbers or lists of numbers

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        return {"id": self.id, "shard": self.shard, "ts": self.ts, "columns": self.columns}


def find_row(chain: Chain, table: str, key: int) -> FoundRow | None:
    """Returns the row of `key`, or None. Call `chain.verify` first."""
    for part in chain.parts(table):
        if part.router is not None:
            (owner,) = part.router.owners(torch.tensor([key])).tolist()
            if owner != part.file.shard:
                continue
        for rows in part.rows():
            (places,) = np.nonzero(rows.ids == key)
            if len(places):
                row = {name: column[places[0]] for name, column in rows.columns.items()}
                values = {n: v.tolist() for n, v in row.items() if n not in (ID, TIME, ORDER)}
                return FoundRow(key, part.file.shard, int(row[TIME]), values)
    return None


def newest(folder: str | PathLike[str]) -> Path:
    """Returns the folder below `folder` whose complete checkpoint has the highest step.

    Interrupted saves have no manifest and do not count. A damaged manifest raises an error.

    >>> import tempfile, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save([table], folder + "/step-9", step=9)
    ...     _ = hr.save([table], folder + "/step-10", step=10)
    ...     newest(folder).name
    'step-10'
    """
    try:
        found = [path for path in local_path(folder).iterdir() if (path / MANIFEST).is_file()]
    except OSError as error:
        raise CheckpointMissingError(f"cannot look into {folder}: {error.strerror}.") from error
    if not found:
        raise CheckpointMissingError(f"{folder} has no folder with a complete checkpoint.")
    return max(found, key=lambda path: (Chain.read(path).last.step, path.name))


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Statistics of a table: rows, mean norm of rows, zero rows, oldest and newest time."""

    rows: int
    mean_length: float
    zero_rows: int
    oldest_ts: int | None
    newest_ts: int | None

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        return asdict(self)


def statistics(
    chain: Chain, table: str, tell: Callable[[int], None] = lambda rows: None
) -> TableStatistics:
    """Reads all rows of a verified chain; calls `tell` with the number of rows read so far."""
    rows, length, zeros = 0, 0.0, 0
    times: list[int] = []
    for part in chain.rows(table):
        if not len(part):
            continue
        lengths = np.linalg.norm(part.columns[ROW].astype(np.float64), axis=1)
        rows += len(part)
        length += float(lengths.sum())
        zeros += int((lengths == 0).sum())
        ts = part.columns[TIME]
        times = [min([*times[:1], int(ts.min())]), max([*times[1:], int(ts.max())])]
        tell(rows)
    oldest, newest = times if times else (None, None)
    return TableStatistics(rows, length / rows if rows else 0.0, zeros, oldest, newest)
