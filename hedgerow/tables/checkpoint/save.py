"""Saves tables: at once, or beside training with a handle that tells how far it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

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
    SaveCancelledError,
    SaveError,
)
from ...core.local_path import local_path
from ...core.shapes import Bool, Int64
from ...routing.router import Router
from ..config import TableConfig
from ..store import Entries
from .background import give_way, threads_beside
from .chain import INCREMENTS, increments_folder
from .changes import Changes
from .files import PART, remove, sole_writer
from .filter_blobs import is_filter_blob
from .freeze import FrozenTable, Saveable, freeze
from .manifest import DENSE, MANIFEST, Manifest
from .manifest_reader import has_manifest, read_manifest
from .meter import Meter, Progress, Report
from .order_blobs import is_order_blob
from .routers import Routers, TableRouters
from .schema import ID, ORDER, ROW, TIME, TableSchema, state_column
from .shard_file import Rows
from .writer import THREADS, Header, Source, clean_folder, disk_error, write_checkpoint

Keep = Callable[[Int64[Tensor, "n"], Int64[Tensor, "n"]], Bool[Tensor, "n"]]
"""Of ids and their times: which rows to save. The others have expired."""


def save_tables(
    tables: Iterable[Saveable],
    path: str | PathLike[str],
    *,
    router: Routers | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    blobs: Mapping[str, bytes] | None = None,
    keep: Keep | None = None,
    consumer: str | None = None,
    overwrite: bool = False,
    report: Report | None = None,
) -> Manifest:
    """Saves all tables into the folder `path`, complete or not at all.

    Rows lie in one file for every table and shard of `router` (hash_roundrobin over 1 if None; or
    one for each table by name), with their global ids, and the counts of admission filters beside
    them: all of one instant. Rows that have expired under a table's `Ttl` at its newest time are
    left out, or what `keep` leaves out. `blobs` are named bytes of the caller's. With a `consumer`
    of touched keys, later increments need not be told what changed. A complete checkpoint is
    replaced only with `overwrite`, and counts until the new one is whole.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.tensor([7, -1]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hr.save_tables([table], folder + "/step-1", step=1).rows
    2
    """
    header = checked_header(step, metadata, blobs)
    return _SaveJob(tables, path, router, header, keep, consumer, overwrite, report).run()


def save_tables_async(
    tables: Iterable[Saveable],
    path: str | PathLike[str],
    *,
    router: Routers | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    blobs: Mapping[str, bytes] | None = None,
    keep: Keep | None = None,
    consumer: str | None = None,
    overwrite: bool = False,
) -> SaveHandle:
    """As `save_tables`, in threads of low priority: the state when this returns, beside training.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hr.save_tables_async([table], folder + "/step-1").wait().rows
    0
    """
    header = checked_header(step, metadata, blobs)
    return SaveHandle(_SaveJob(tables, path, router, header, keep, consumer, overwrite, None))


def save_model(
    tables: Iterable[Saveable],
    folder: Path,
    *,
    router: Routers,
    header: Header,
    overwrite: bool,
) -> Manifest:
    """As `save_tables`, with the dense part of a model that the header has."""
    return _SaveJob(tables, folder, router, header, None, None, overwrite, None).run()


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
            self._manifest = self._job.run(threads_beside(THREADS))
        except BaseException as error:  # it belongs to whoever waits; perhaps nobody does
            self._error = error
            if not isinstance(error, SaveCancelledError):
                logging.getLogger("hedgerow").warning("a save failed: %s", error)

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
        router: Routers | None,
        header: Header,
        keep: Keep | None,
        consumer: str | None,
        overwrite: bool,
        report: Report | None,
    ) -> None:
        named = by_name(tables)
        self._folder = local_path(path)
        self._routers = TableRouters.of(
            Router("hash_roundrobin", 1) if router is None else router, named
        )
        self.meter = Meter(sum(table.size() for table in named.values()), report)
        self._held = ExitStack()
        self._changes = None if consumer is None else Changes(named, consumer)
        self._made = False
        try:
            self._made = self._held.enter_context(sole_writer(self._folder, make=True))
            self._old = complete_there(self._folder, checks.flag("overwrite", overwrite))
            frozen = freeze(named, self._held, lambda _: self._take_changes())
            self._header = replace(header, blobs={**header.blobs, **frozen.blobs})
            self._sources = [
                table_source(table.config, frozen.tables[name], keep)
                for name, table in named.items()
            ]
        except BaseException:
            self._failed()
            raise

    def run(self, threads: int = THREADS) -> Manifest:
        """Writes, and cleans up what is no longer needed."""
        try:
            clean_before(self._folder, self._old)
            manifest = write_checkpoint(
                self._folder, self._sources, self._routers, self._header, self.meter, threads
            )
            if self._changes is not None:
                self._changes.settle(manifest.checksum)
            clean_after(self._folder, manifest)
            return manifest
        except BaseException:
            self._failed()
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Lets rows and folder go."""
        self._held.close()

    def _take_changes(self) -> None:
        if self._changes is not None:
            self._changes.take()

    def _failed(self) -> None:
        if self._changes is not None:
            self._changes.give_back()
        if self._made:
            remove_empty(self._folder)  # while it is still held
        self.close()


def table_source(config: TableConfig, frozen: FrozenTable, keep: Keep | None) -> Source:
    """The rows of a table, as the writer takes them."""
    wanted = frozen.keep if keep is None and frozen.rule is not None else keep

    def rows() -> Iterator[Rows]:
        for entries in frozen.rows.scan():
            chosen = rows_of(entries)
            yield chosen if wanted is None else chosen.take(kept(wanted, entries))

    schema, plain = TableSchema.of(config), plain_config(config)
    return Source(
        *(config.name, schema, rows),
        config=plain,
        also=config.also,
        slot_key=frozen.slot_key,
        size=frozen.size,
    )


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
    order = np.zeros_like(columns[ID]) if entries.order is None else entries.order.numpy()
    return Rows({**columns, ORDER: order})


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
        if is_filter_blob(name) or is_order_blob(name) or name == DENSE:
            raise InputError(
                f"blobs[{name!r}]: this name belongs to a filter, a table or a model; choose "
                f"another."
            )
    if metadata is not None and not isinstance(metadata, Mapping):
        raise DtypeError(f"metadata is a {type(metadata).__name__}; pass a dict.")
    return Header(checks.count("step", step), dict(metadata or {}), dict(blobs or {}))


def complete_there(folder: Path, overwrite: bool) -> Manifest | None:
    """The checkpoint that would be replaced, if it can be read."""
    if not has_manifest(folder):
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
    try:
        if old is not None or not has_manifest(folder):
            clean_folder(folder, old.keeps() if old else set())
        remove([folder / (MANIFEST + PART)])
    except OSError as error:
        raise disk_error(folder, error, complete=False) from error


def clean_after(folder: Path, new: Manifest) -> None:
    """Removes what a new base has replaced, increments included."""
    current = increments_folder(folder, new)
    try:
        clean_folder(folder, new.keeps())
        remove(
            [
                path
                for path in folder.iterdir()
                if INCREMENTS.fullmatch(path.name) and path.is_dir() and path != current
            ]
        )
    except OSError as error:
        raise disk_error(folder, error, complete=True) from error


def remove_empty(folder: Path) -> None:
    """Removes a folder that a save made, and in which it left nothing."""
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
