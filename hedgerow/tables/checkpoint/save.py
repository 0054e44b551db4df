"""Saves tables: at once, or beside training with a handle that tells how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...core import checks
from ...core.errors import (
    CheckpointError,
    CheckpointExistsError,
    ConfigError,
    DtypeError,
    InputError,
    SaveError,
)
from ...core.shapes import Bool, Int64
from ...routing.router import Router
from ..config import TableConfig
from ..store import Entries
from .background import give_way
from .chain import increments_folder
from .files import PART, make_folder, remove, sole_writer
from .manifest import MANIFEST, Manifest
from .manifest_reader import read_manifest
from .meter import Meter, Progress, Report
from .schema import ID, ROW, TIME, TableSchema, state_column
from .shard_file import Rows
from .writer import Header, Source, clean_folder, write_checkpoint

Keep = Callable[[Int64[Tensor, "n"], Int64[Tensor, "n"]], Bool[Tensor, "n"]]
"""Of ids and their times: which rows to save. The others have expired."""


class Scannable(Protocol):
    """What gives rows: a table, or a snapshot of one."""

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices."""
        ...


class Saveable(Scannable, Protocol):
    """A table that can be saved."""

    config: TableConfig

    def size(self) -> int:
        """Rows."""
        ...


def save_tables(
    tables: Iterable[Saveable],
    path: str | PathLike[str],
    *,
    router: Router | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    blobs: Mapping[str, bytes] | None = None,
    keep: Keep | None = None,
    overwrite: bool = False,
    report: Report | None = None,
) -> Manifest:
    """Saves all tables into the folder `path`, complete or not at all.

    Rows lie in one file for every table and shard of `router` (hash_roundrobin over 1 if None),
    with their global ids. `blobs` are named bytes kept beside them. `keep` leaves expired rows out.
    A complete checkpoint is replaced only with `overwrite`, and counts until the new one is whole.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.tensor([7, -1]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hr.save_tables([table], folder + "/step-1", step=1).rows
    2
    """
    job = _SaveJob(
        tables, path, router, checked_header(step, metadata, blobs), keep, overwrite, report
    )
    return job.run()


def save_tables_async(
    tables: Iterable[Saveable],
    path: str | PathLike[str],
    *,
    router: Router | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    blobs: Mapping[str, bytes] | None = None,
    keep: Keep | None = None,
    overwrite: bool = False,
) -> SaveHandle:
    """As `save_tables`, in threads of its own, of low priority (on Linux); training goes on.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hr.save_tables_async([table], folder + "/step-1").wait().rows
    0
    """
    header = checked_header(step, metadata, blobs)
    return SaveHandle(_SaveJob(tables, path, router, header, keep, overwrite, None))


class SaveHandle:
    """A save that is under way. Safe from many threads."""

    def __init__(self, job: _SaveJob) -> None:
        self._job = job
        self._manifest: Manifest | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="hedgerow save")
        try:
            self._thread.start()
        except BaseException:
            job.close()
            raise

    def _work(self) -> None:
        try:
            give_way()
            self._manifest = self._job.run()
        except BaseException as error:  # it belongs to whoever waits
            self._error = error

    def progress(self) -> Progress:
        """Rows and bytes so far."""
        return self._job.meter.progress()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Asks it to stop; `wait` then raises `SaveCancelledError`, unless it was done already."""
        self._job.meter.cancel()

    def wait(self, timeout_s: float | None = None) -> Manifest:
        """The manifest, once all is on the disk; raises what went wrong."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the save is not done after {timeout_s} s; {self.progress()}.")
        if self._error is not None:
            raise self._error
        if self._manifest is None:
            raise SaveError("the save ended without a result.")
        return self._manifest


class _SaveJob:
    """One save: rows are frozen and the folder is held when it is made. Runs once."""

    def __init__(
        self,
        tables: Iterable[Saveable],
        path: str | PathLike[str],
        router: Router | None,
        header: Header,
        keep: Keep | None,
        overwrite: bool,
        report: Report | None,
    ) -> None:
        named = by_name(tables)
        self._folder, self._header = Path(path), header
        self._router = router or Router("hash_roundrobin", 1)
        self.meter = Meter(sum(table.size() for table in named.values()), report)
        self._held = ExitStack()
        try:
            self._was_there = self._folder.exists()
            make_folder(self._folder)
            self._held.enter_context(sole_writer(self._folder))
            self._old = complete_there(self._folder, checks.flag("overwrite", overwrite))
            self._sources = [
                table_source(table, self._held.enter_context(consistent_rows(table)), keep)
                for table in named.values()
            ]
        except OSError as error:
            self._held.close()
            raise _plain_error(self._folder, error) from error
        except BaseException:
            self._held.close()
            raise

    def run(self) -> Manifest:
        """Writes, and cleans up what is no longer needed."""
        try:
            clean_before(self._folder, self._old)
            manifest = write_checkpoint(
                self._folder, self._sources, self._router, self._header, self.meter
            )
            clean_after(self._folder, manifest)
            return manifest
        except BaseException:
            if not self._was_there and not any(self._folder.iterdir()):
                self._folder.rmdir()
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Lets rows and folder go."""
        self._held.close()


def consistent_rows(table: Scannable) -> AbstractContextManager[Scannable]:
    """The rows of one instant where the table can give them, else a scan while writes go on."""
    snapshot = getattr(table, "snapshot", None)
    return nullcontext(table) if snapshot is None else snapshot()


def table_source(table: Saveable, frozen: Scannable, keep: Keep | None) -> Source:
    """The rows of a table, as the writer takes them."""

    def rows() -> Iterator[Rows]:
        for entries in frozen.scan():
            chosen = rows_of(entries)
            yield chosen if keep is None else chosen.take(kept(keep, entries))

    config = table.config
    return Source(config.name, TableSchema.of(config), rows, config=plain_config(config))


def rows_of(entries: Entries) -> Rows:
    """Entries as named columns, without a copy."""
    columns: dict[str, np.ndarray] = {
        ID: entries.ids.numpy(),
        TIME: entries.ts.numpy(),
        ROW: entries.rows.numpy(),
    }
    for i, states in enumerate(entries.states):
        for name, value in states.items():
            columns[state_column(i, name)] = value.numpy()
    return Rows(columns)


def kept(keep: Keep, entries: Entries) -> np.ndarray:
    """Which rows `keep` wants."""
    mask = keep(entries.ids, entries.ts)
    checks.tensor("what keep returned", mask, torch.bool, (len(entries),))
    return mask.numpy()


def plain_config(config: TableConfig) -> dict[str, Any] | None:
    """The config as a dict, or None where a rate is a function, which no file can hold."""
    try:
        return config.to_dict()
    except ConfigError:
        return None


def by_name(tables: Iterable[Saveable]) -> dict[str, Saveable]:
    """Tables by name; two of one name are refused."""
    listed: Sequence[Saveable] = list(tables)
    named = {table.config.name: table for table in listed}
    if len(named) != len(listed):
        names = [table.config.name for table in listed]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two tables are named {twice!r}; a checkpoint needs one of each name.")
    return dict(sorted(named.items()))


def checked_header(
    step: int, metadata: Mapping[str, Any] | None, blobs: Mapping[str, bytes] | None
) -> Header:
    """What a manifest says beside its tables, checked."""
    for name, data in (blobs or {}).items():
        if not isinstance(name, str) or not name or not isinstance(data, bytes):
            raise DtypeError(
                f"blobs[{name!r}] is a {type(data).__name__}; blobs are bytes by non-empty name."
            )
    if metadata is not None and not isinstance(metadata, Mapping):
        raise DtypeError(f"metadata is a {type(metadata).__name__}; pass a dict.")
    return Header(checks.count("step", step), dict(metadata or {}), dict(blobs or {}))


def complete_there(folder: Path, overwrite: bool) -> Manifest | None:
    """The checkpoint that would be replaced, if it can be read."""
    if not (folder / MANIFEST).exists():
        return None
    if not overwrite:
        raise CheckpointExistsError(
            f"{folder} holds a checkpoint; save to another folder, or pass overwrite=True."
        )
    try:
        return read_manifest(folder)
    except CheckpointError:
        return None  # damaged: its files stay until the new one is whole


def clean_before(folder: Path, old: Manifest | None) -> None:
    """Removes what stopped saves left; what an unreadable manifest may need stays."""
    if old is not None or not (folder / MANIFEST).exists():
        clean_folder(folder, old.names() if old else set())
    remove([folder / (MANIFEST + PART)])


def clean_after(folder: Path, new: Manifest) -> None:
    """Removes what a new base has replaced, increments included."""
    clean_folder(folder, new.names())
    current = increments_folder(folder, new)
    remove([path for path in folder.glob("increments-*") if path != current])


def _plain_error(folder: Path, error: OSError) -> OSError:
    if isinstance(error, SaveError | CheckpointExistsError):
        return error
    return SaveError(f"cannot save to {folder}: {error.strerror or error}.")
