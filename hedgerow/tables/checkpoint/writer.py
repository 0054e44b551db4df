"""Writes one checkpoint or increment into a folder, and completes it with one rename."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core.errors import CheckpointError, HedgerowError, InputError, SaveError
from ...routing.router import Router
from .files import PART, HashedFile, is_no_room, read_plain, remove, room_left, sync_folder
from .manifest import (
    DENSE,
    ID,
    MANIFEST,
    BlobEntry,
    CheckpointManifest,
    FileEntry,
    Routing,
    SavedTableEntry,
    TableSchema,
    deletion_columns,
    row_bytes,
)
from .manifest_reader import parse_manifest
from .routers import TableRouters
from .shard_file import SavedRows, ShardWriter
from .workers import Meter, Workers

THREADS = 4  # tables at a time, and files at a time
_OURS = re.compile(
    r"(((\d{3,}|blob)-[\w-]*-[0-9a-f]{12}\.(arrow|bin)"
    r"|dense-[0-9a-f]{12}\.safetensors)(\.part)?"
    r"|dense-[0-9a-f]{12})\Z",  # a folder, in version 0.1
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class TableSource:
    """One table to write: its schema, and a function that yields its rows."""

    name: str
    schema: TableSchema
    rows: Callable[[], Iterator[SavedRows]]
    deletions: np.ndarray | None = None
    config: dict[str, Any] | None = None
    also: tuple[str, ...] = ()  # other names of the table
    slot_key: int | None = None
    size: int = 0  # approximate rows; an error of a full disk reports their bytes

    @property
    def data_bytes(self) -> int:
        """The approximate bytes of its files."""
        gone = 0 if self.deletions is None else 8 * len(self.deletions)
        return self.size * row_bytes(self.schema.columns()) + gone


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """The dense part of a model: `write` passes its bytes, piece by piece, to a function."""

    file_bytes: int
    write: Callable[[Callable[[Any], object]], None]


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a manifest other than its tables."""

    step: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    number: int = 0
    parent: str | None = None
    dense: Dense | None = None

    @property
    def data_bytes(self) -> int:
        """The bytes of all files that hold no rows."""
        dense = 0 if self.dense is None else self.dense.file_bytes
        return dense + sum(len(data) for data in self.blobs.values())


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The files of a save that has no manifest yet."""

    files: tuple[FileEntry, ...] = ()
    blobs: tuple[BlobEntry, ...] = ()


def write_checkpoint(
    folder: Path,
    sources: Sequence[TableSource],
    routers: TableRouters,
    header: Header,
    meter: Meter,
    threads: int = THREADS,
) -> CheckpointManifest:
    """Writes all files, then the manifest. If it fails, it removes its files.

    The names of the files are unique to this save. An earlier checkpoint in the folder therefore
    stays complete, and stays the checkpoint until the new manifest is renamed.
    """
    mark = new_mark()
    with no_remains(folder, mark, needed_bytes(sources, header)):
        written = write_files(folder, sources, routers, header, meter, mark, threads)
        meter.go_on()
        return write_manifest(folder, sources, routers, header, written)


def new_mark() -> str:
    """Returns a mark that is part of the names of all files of one save."""
    return secrets.token_hex(6)


def is_mark(word: str) -> bool:
    """Returns whether a word has the form of a mark, and may be part of file names.

    >>> is_mark(new_mark()), is_mark("*")
    (True, False)
    """
    return re.fullmatch(r"[0-9a-f]{12}", word) is not None


def write_files(
    folder: Path,
    sources: Sequence[TableSource],
    routers: TableRouters,
    header: Header,
    meter: Meter,
    mark: str,
    threads: int = THREADS,
    shard: int | None = None,
) -> WrittenFiles:
    """Writes the files of rows and blobs; a `shard`, if given, must own all rows."""
    with Workers(threads) as writers:
        jobs = [
            _TableJob(
                folder,
                f"{i:03d}-{_safe(source.name)}",
                source,
                routers.by_name[source.name],
                _shards_to_write(routers.by_name[source.name], header, shard),
                mark,
                meter,
                writers,
                shard,
            )
            for i, source in enumerate(sources)
        ]
        with Workers(min(threads, len(jobs))) as tables:
            files = [file for found in _all(tables, jobs, meter) for file in found]
        which = "" if shard is None else f"{shard:05d}-"
        blobs = [
            _write_blob(folder, f"blob-{which}{i:03d}-{_safe(name)}-{mark}.bin", name, data)
            for i, (name, data) in enumerate(sorted(header.blobs.items()))
        ]
        if header.dense is not None:
            blobs.append(write_dense(folder, header.dense, mark))
    return WrittenFiles(tuple(files), tuple(blobs))


def write_dense(folder: Path, dense: Dense, mark: str) -> BlobEntry:
    """Writes the file of a model's dense part."""
    return _write_file(folder, f"dense-{mark}.safetensors", DENSE, dense.write)


def write_manifest(
    folder: Path,
    sources: Sequence[TableSource],
    routers: TableRouters,
    header: Header,
    written: WrittenFiles,
) -> CheckpointManifest:
    """Completes a checkpoint whose files all exist."""
    rule, files = routers.default, written.files
    manifest, data = CheckpointManifest(
        routing=Routing(rule.dist_type, rule.shards, rule.rank0_empty),
        tables={s.name: _entry(s, files, routers.by_name[s.name]) for s in sources},
        files=files,
        blobs=written.blobs,
        number=header.number,
        parent=header.parent,
        step=header.step,
        metadata=header.metadata,
    ).sealed()
    _check_readable(folder, data)
    sync_folder(folder)  # makes the names of the files durable before the manifest that needs them
    last = HashedFile(folder / MANIFEST)
    last.write(data)
    last.publish()
    sync_folder(folder)
    return manifest


def _check_readable(folder: Path, data: bytes) -> None:
    """Raises if a load could not read the manifest, before it replaces another."""
    try:
        parse_manifest(data, folder / MANIFEST)
    except CheckpointError as error:
        raise InputError(
            f"this save would write a manifest that no load accepts: {error}"
        ) from error


def _shards_to_write(router: Router, header: Header, shard: int | None) -> range:
    """Returns the shards that get a file even without rows: all of a base."""
    if header.number:
        return range(0)
    return range(router.shards) if shard is None else range(shard, shard + 1)


def clean_folder(folder: Path, keep: set[str]) -> None:
    """Removes files of saves that were interrupted or replaced; leaves other programs' files."""
    remains = [
        path
        for path in folder.iterdir()
        if path.name not in keep
        and (_OURS.match(path.name) or path.name == MANIFEST + PART)
        and path.is_dir() == ("." not in path.name)
    ]
    remove(remains)


def needed_bytes(sources: Sequence[TableSource], header: Header) -> int:
    """Returns the approximate bytes of a save's files."""
    return header.data_bytes + sum(source.data_bytes for source in sources)


@contextmanager
def no_remains(folder: Path, mark: str, needed: int = 0) -> Iterator[None]:
    """Removes the files of the save on an error; an error of the disk then says so."""
    try:
        yield
    except BaseException as error:
        removed = remove_remains(folder, mark)
        if isinstance(error, OSError) and not isinstance(error, HedgerowError):
            raise disk_error(folder, error, complete=not removed, needed=needed) from error
        raise


def disk_error(folder: Path, error: OSError, *, complete: bool, needed: int = 0) -> SaveError:
    """Returns the error for a failed disk operation, with the file and the state of the save."""
    file = f" at {error.filename}" if error.filename else ""
    room = f"{room_left(folder, needed)} " if is_no_room(error) and needed and not complete else ""
    became = (
        "It is complete, but may not survive a power failure; save again."
        if complete
        else "Its files were removed and an earlier checkpoint is untouched; make room, or "
        "save elsewhere."
    )
    return SaveError(
        f"the save to {folder} failed{file}: {error.strerror or error}. {room}{became}"
    )


def remove_remains(folder: Path, mark: str, *, owner: bool = True) -> bool:
    """Removes the files of a failed save, unless its manifest is in place; returns whether it did.

    `owner` says that this process holds the folder, so an unfinished manifest is of this save.
    """
    committed = False
    try:
        committed = mark.encode() in read_plain(folder / MANIFEST)
    except CheckpointError:
        committed = False  # no readable manifest: this save has none either
    if not committed:
        remove([*folder.glob(f"*-{mark}.*"), *([folder / (MANIFEST + PART)] if owner else [])])
    return not committed


def _all(pool: Workers, jobs: Sequence[_TableJob], meter: Meter) -> list[list[FileEntry]]:
    """Returns the files of every table; the first error stops the other tables."""

    def run(job: _TableJob) -> list[FileEntry]:
        try:
            return job.run()
        except BaseException:
            meter.cancel()
            raise

    running = [pool.submit(run, job) for job in jobs]
    errors = [error for error in (task.exception() for task in running) if error is not None]
    if errors:  # the first error, not those of the tables that it stopped
        raise min(errors, key=lambda error: "Cancelled" in type(error).__name__)
    return [task.result() for task in running]


class _TableJob:
    """Writes one table: rows go to the files of their owners while the next rows are read."""

    def __init__(
        self,
        folder: Path,
        start: str,
        source: TableSource,
        router: Router,
        shards: range,
        mark: str,
        meter: Meter,
        writers: Workers,
        only: int | None,
    ) -> None:
        self._folder, self._source, self._router = folder, source, router
        self._shards, self._mark, self._only = shards, mark, only
        self._meter, self._pool, self._start = meter, writers, start
        self._open: dict[int, ShardWriter] = {}

    def run(self) -> list[FileEntry]:
        """Writes the files; returns their entries."""
        try:
            for shard in self._shards:
                self._shard(shard)
            pending: list[Future[None]] = []
            for rows in self._source.rows():
                parts = list(_by_owner(rows, self._router))
                self._settle(pending)
                pending = [
                    self._pool.submit(self._write, self._shard(shard), part)
                    for shard, part in parts
                ]
            self._settle(pending)
            self._settle([self._pool.submit(w.finish) for w in self._open.values()])
            return [*self._row_files(), *self._deletion_files()]
        finally:
            for writer in self._open.values():
                writer.abandon()

    def _settle(self, tasks: list[Future[None]]) -> None:
        """Waits for all tasks, because files are closed after an error; raises the first error."""
        errors = [error for error in (task.exception() for task in tasks) if error is not None]
        if errors:
            raise errors[0]

    def _write(self, writer: ShardWriter, rows: SavedRows) -> None:
        before = writer.file_bytes
        writer.write(rows)
        self._meter.add(len(rows), writer.file_bytes - before)

    def _shard(self, shard: int) -> ShardWriter:
        if self._only not in (None, shard):
            raise SaveError(
                f"table {self._source.name!r} of shard {self._only} holds rows of shard {shard}; "
                f"write rows through the model, or to the table of the rank that owns them."
            )
        if shard not in self._open:
            name = f"{self._start}-{shard:05d}-of-{self._router.shards:05d}-{self._mark}.arrow"
            self._open[shard] = ShardWriter(
                self._folder / name, self._source.schema.columns(), behind=self._pool.threads > 0
            )
        return self._open[shard]

    def _row_files(self) -> Iterator[FileEntry]:
        for shard, writer in sorted(self._open.items()):
            yield _file(writer, self._source.name, shard, "rows")

    def _deletion_files(self) -> Iterator[FileEntry]:
        if self._source.deletions is None or not len(self._source.deletions):
            return
        path = self._folder / f"{self._start}-deletions-{self._mark}.arrow"
        writer = ShardWriter(path, deletion_columns())
        try:
            writer.write(SavedRows({ID: self._source.deletions}))
            writer.finish()
        finally:
            writer.abandon()
        yield _file(writer, self._source.name, 0, "deletions")


def _file(writer: ShardWriter, table: str, shard: int, content: str) -> FileEntry:
    return FileEntry(
        writer.name, table, shard, content, writer.rows, writer.file_bytes, writer.sha256
    )


def _by_owner(rows: SavedRows, router: Router) -> Iterator[tuple[int, SavedRows]]:
    """Yields the rows of each shard, in order."""
    if not len(rows):
        return
    if router.shards == 1:
        yield 0, rows
        return
    owners = router.owners(torch.from_numpy(np.ascontiguousarray(rows.ids))).numpy()
    order = np.argsort(owners, kind="stable")
    shards, starts = np.unique(owners[order], return_index=True)
    stops = [*starts[1:], len(order)]
    for shard, start, stop in zip(shards.tolist(), starts.tolist(), stops, strict=True):
        yield shard, rows.take(order[start:stop])


def _entry(source: TableSource, files: Sequence[FileEntry], router: Router) -> SavedTableEntry:
    def total(content: str) -> int:
        return sum(f.rows for f in files if f.table == source.name and f.content == content)

    return SavedTableEntry(
        source.schema,
        total("rows"),
        total("deletions"),
        source.config,
        router.dist_type,
        router.rows,
        None if router.bounds is None else tuple(router.bounds),
        source.also,
        source.slot_key,
    )


def _write_blob(folder: Path, file_name: str, name: str, data: bytes) -> BlobEntry:
    return _write_file(folder, file_name, name, lambda write: write(data))


def _write_file(
    folder: Path, file_name: str, name: str, write: Callable[[Callable[[Any], object]], object]
) -> BlobEntry:
    file = HashedFile(folder / file_name)
    try:
        write(file.write)
        sha256 = file.publish()
    finally:
        file.close()
    return BlobEntry(name, file_name, file.file_bytes, sha256)


def _safe(name: str) -> str:
    """Returns a readable form of a name, as part of a file name."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)[:40]
