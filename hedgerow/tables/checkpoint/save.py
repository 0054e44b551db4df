"""Saves tables as of one instant: during the call, or in the background during training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
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
    SaveCancelledError,
    SaveError,
)
from ...core.files import local_path
from ...core.shapes import Bool, Int64
from ...routing.router import Router
from ..changes import TouchedBatch
from ..config import TableConfig
from ..eviction import Ttl, expired
from ..local_table import LocalTable, TableSnapshot, TouchedConsumer
from ..store import Entries
from .blobs import (
    ALONE,
    BlobShard,
    dump_filters,
    dump_orders,
    filter_blobs,
    is_filter_blob,
    is_order_blob,
    order_blobs,
)
from .chain import INCREMENTS, increments_folder
from .files import PART, remove, sole_writer
from .manifest import (
    DENSE,
    ID,
    MANIFEST,
    ORDER,
    ROW,
    TIME,
    CheckpointManifest,
    TableSchema,
    state_column,
)
from .manifest_reader import has_manifest, read_manifest
from .routers import Routers, TableRouters
from .shard_file import SavedRows
from .workers import CheckpointProgress, Meter, Report, background_threads, lower_priority
from .writer import THREADS, Header, TableSource, clean_folder, disk_error, write_checkpoint


class Saveable(Protocol):
    """A table that can be saved."""

    config: TableConfig

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows, in slices."""
        ...

    def size(self) -> int:
        """Returns the number of rows."""
        ...

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes."""
        ...


@dataclass(frozen=True, slots=True)
class HeldTable:
    """The rows of a table at one instant, and the rule by which they expire."""

    rows: TableSnapshot | Saveable
    size: int
    newest_s: int
    rule: Ttl | None
    slot_key: int | None = None  # None unless the table is in this process

    def keep(self, ids: Int64[Tensor, "n"], ts: Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Returns which rows have not expired at the newest time."""
        return ~expired(ids, ts, self.newest_s, self.rule)


@dataclass(frozen=True, slots=True)
class HeldTables:
    """All tables by name, and their filters and orders as named bytes."""

    tables: dict[str, HeldTable]
    blobs: dict[str, bytes]


def hold_tables(
    tables: Mapping[str, Saveable],
    held: ExitStack,
    at_instant: Callable[[dict[str, HeldTable]], None],
    place: BlobShard = ALONE,
) -> HeldTables:
    """Holds the rows of tables as they are now until `held` is closed; training continues.

    Writers on other threads wait while the snapshots are opened, filters are copied and
    `at_instant` runs, so that all are of one instant. Tables without snapshots are read later, as
    they are then.
    """
    found: dict[str, HeldTable] = {}
    snapshots: list[TableSnapshot] = []
    try:
        for name, table in tables.items():
            rule = table.config.evict if isinstance(table.config.evict, Ttl) else None
            if isinstance(table, LocalTable):
                snapshot = table.snapshot(paused=True)
                held.enter_context(snapshot)
                snapshots.append(snapshot)
                found[name] = HeldTable(
                    snapshot, snapshot.size, snapshot.max_ts, rule, table.slot_key
                )
            else:
                found[name] = HeldTable(table, table.size(), table.max_ts(), rule)
        at_instant(found)
        filters, orders = dump_filters(tables.values()), dump_orders(tables)
    finally:
        for snapshot in snapshots:
            snapshot.resume()
    return HeldTables(found, {**filter_blobs(filters, place), **order_blobs(orders, place)})


class ChangedKeys:
    """The change feeds of some tables for one consumer of all changes. Single-owner."""

    def __init__(self, tables: Mapping[str, object], consumer: str) -> None:
        self._consumer = consumer
        self._sources: dict[str, TouchedConsumer] = {}
        self._opened: list[TouchedConsumer] = []
        self._taken: dict[str, TouchedBatch] = {}
        self._since: dict[str, str | None] = {}
        for name, table in tables.items():
            if not isinstance(table, LocalTable):
                raise DtypeError(
                    f"table {name!r} is a {type(table).__name__}; only a HostTable or a "
                    f"DeviceTable knows its changed keys. Pass them yourself, as changed=."
                )
            self._sources[name] = self._source(table)

    def _source(self, table: LocalTable) -> TouchedConsumer:
        known = table.consumer(self._consumer)
        if known is None:
            self._opened.append(table.touched(self._consumer, all_changes=True))
            return self._opened[-1]
        if not known.settings.all_changes:
            raise InputError(
                f"consumer {self._consumer!r} of table {table.config.name!r} does not see all "
                f"changes; open it with all_changes=True, or choose another name."
            )
        return known

    def take(self) -> None:
        """Takes the keys of all tables from their feeds; raises if another save is doing so."""
        for name, source in self._sources.items():
            if not source.delivering.acquire(blocking=False):
                raise CheckpointError(
                    f"another save takes the changed keys of table {name!r} for consumer "
                    f"{self._consumer!r}; wait for it, or give this one a consumer of its own."
                )
            self._since[name] = source.since
            self._taken[name] = source.take()

    def since(self, checksum: str, folder: Path) -> dict[str, Int64[Tensor, "n"]]:
        """Returns the taken keys; raises unless they are all changes since this checkpoint."""
        for name in self._sources:
            if self._since[name] != checksum:
                raise CheckpointError(
                    f"consumer {self._consumer!r} has not collected the changed keys of table "
                    f"{name!r} since the last save to {folder}; save a new base with "
                    f"hr.save([table, ...], path, consumer={self._consumer!r}) first."
                )
            if self._taken[name].whole_table:
                raise CheckpointError(
                    f"more keys of table {name!r} changed than consumer {self._consumer!r} "
                    f"keeps, or all rows were replaced; save a new base with "
                    f"hr.save([table, ...], path, consumer={self._consumer!r})."
                )
        return {name: taken.ids.cpu() for name, taken in self._taken.items()}

    def settle(self, checksum: str) -> None:
        """Records that the keys were saved; later changes belong to the next increment."""
        for source in self._sources.values():
            source.since = checksum
        self._opened.clear()
        self._release()

    def give_back(self) -> None:
        """Gives the keys back, as they were not saved; closes feeds that this save opened."""
        for name, taken in self._taken.items():
            self._sources[name].give_back(taken)
        self._release()
        while self._opened:
            self._opened.pop().close()

    def _release(self) -> None:
        for name in self._taken:
            self._sources[name].delivering.release()
        self._taken.clear()


Keep = Callable[[Int64[Tensor, "n"], Int64[Tensor, "n"]], Bool[Tensor, "n"]]
"""Maps ids and their times to a mask of the rows to save; the other rows have expired."""


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
) -> CheckpointManifest:
    """Saves all tables into the folder `path`, completely or not at all.

    Each table has one file per shard of `router`, with global ids. `router` may be one for all
    tables or one per name; None is hash_roundrobin over 1 shard. The counts of admission filters
    are saved too, and all is of one instant. Rows that have expired under a table's `Ttl` at its
    newest time are left out; `keep` replaces that rule. `blobs` are named bytes of the caller. A
    `consumer` of touched keys collects what later increments need. A complete checkpoint in `path`
    is replaced only with `overwrite`, and remains the checkpoint until the new one is complete.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.tensor([7, -1]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hr.save([table], folder + "/step-1", step=1).rows
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
    """Saves as `save_tables`, in threads of low priority, the state at the time of this call.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hr.save_async([table], folder + "/step-1").wait().rows
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
) -> CheckpointManifest:
    """Saves as `save_tables`, with the dense part of a model that is in the header."""
    return _SaveJob(tables, folder, router, header, None, None, overwrite, None).run()


def start_saving_model(
    tables: Iterable[Saveable],
    folder: Path,
    *,
    router: Routers,
    header: Header,
    overwrite: bool,
) -> SaveHandle:
    """As `save_model`, in threads of low priority."""
    return SaveHandle(_SaveJob(tables, folder, router, header, None, None, overwrite, None))


class SaveHandle:
    """A running save. Safe from many threads."""

    def __init__(self, job: _SaveJob) -> None:
        self._job = job
        self._manifest: CheckpointManifest | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="hedgerow save")
        try:
            self._thread.start()
        except BaseException:
            job.close()
            raise

    def _work(self) -> None:
        try:
            lower_priority()
            self._manifest = self._job.run(background_threads(THREADS))
        except BaseException as error:  # raised by wait(), if it is called
            self._error = error
            if not isinstance(error, SaveCancelledError):
                logging.getLogger("hedgerow").warning("a save failed: %s", error)

    def progress(self) -> CheckpointProgress:
        """Returns the rows and bytes written so far."""
        return self._job.meter.progress()

    def done(self) -> bool:
        """Returns whether it has ended, successfully or not."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancels the save; `wait` then raises `SaveCancelledError` unless it was complete."""
        self._job.meter.cancel()

    def wait(self, timeout_s: float | None = None) -> CheckpointManifest:
        """Waits until the save is on the disk; returns the manifest, or raises the save's error."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the save is not done after {timeout_s} s; {self.progress()}.")
        if self._error is not None:
            raise self._error
        if self._manifest is None:
            raise SaveError("the save ended without a result.")
        return self._manifest


class _SaveJob:
    """One save. The constructor freezes the rows and locks the folder. Runs once."""

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
        self._changes = None if consumer is None else ChangedKeys(named, consumer)
        self._made = False
        try:
            self._made = self._held.enter_context(sole_writer(self._folder, make=True))
            self._old = complete_there(self._folder, checks.flag("overwrite", overwrite))
            frozen = hold_tables(named, self._held, lambda _: self._take_changes())
            self._header = replace(header, blobs={**header.blobs, **frozen.blobs})
            self._sources = [
                table_source(table.config, frozen.tables[name], keep)
                for name, table in named.items()
            ]
        except BaseException:
            self._failed()
            raise

    def run(self, threads: int = THREADS) -> CheckpointManifest:
        """Writes the checkpoint, then removes files that are no longer needed."""
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
        """Releases the rows and the folder."""
        self._held.close()

    def _take_changes(self) -> None:
        if self._changes is not None:
            self._changes.take()

    def _failed(self) -> None:
        if self._changes is not None:
            self._changes.give_back()
        if self._made:
            remove_empty(self._folder)  # while it is still locked
        self.close()


def table_source(config: TableConfig, frozen: HeldTable, keep: Keep | None) -> TableSource:
    """Returns the rows of a table in the form that the writer takes."""
    wanted = frozen.keep if keep is None and frozen.rule is not None else keep

    def rows() -> Iterator[SavedRows]:
        for entries in frozen.rows.scan():
            chosen = rows_of(entries)
            yield chosen if wanted is None else chosen.take(kept(wanted, entries))

    schema, plain = TableSchema.of(config), plain_config(config)
    return TableSource(
        *(config.name, schema, rows),
        config=plain,
        also=config.also,
        slot_key=frozen.slot_key,
        size=frozen.size,
    )


def rows_of(entries: Entries) -> SavedRows:
    """Returns entries as named columns, without a copy."""
    columns: dict[str, np.ndarray] = {
        ID: entries.ids.numpy(),
        TIME: entries.ts.numpy(),
        ROW: entries.rows.numpy(),
    }
    for i, states in enumerate(entries.states):
        for name, value in states.items():
            columns[state_column(i, name)] = value.numpy()
    order = np.zeros_like(columns[ID]) if entries.order is None else entries.order.numpy()
    return SavedRows({**columns, ORDER: order})


def kept(keep: Keep, entries: Entries) -> np.ndarray:
    """Returns a mask of the rows that `keep` keeps."""
    mask = keep(entries.ids, entries.ts)
    checks.tensor("what keep returned", mask, torch.bool, (len(entries),))
    return mask.numpy()


def plain_config(config: TableConfig) -> dict[str, Any] | None:
    """Returns the config as a dict; None if a rate is a function, which no file can hold."""
    try:
        return config.to_dict()
    except ConfigError:
        return None


def by_name(tables: Iterable[Saveable]) -> dict[str, Saveable]:
    """Returns tables by name; raises if two have the same name."""
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
    """Returns the checked header of a manifest: step, metadata and blobs."""
    for name, data in (blobs or {}).items():
        if not isinstance(name, str) or not name or not isinstance(data, bytes):
            raise DtypeError(
                f"blobs[{name!r}] is a {type(data).__name__}; blobs map non-empty names to bytes."
            )
        if is_filter_blob(name) or is_order_blob(name) or name == DENSE:
            raise InputError(
                f"blobs[{name!r}]: this name belongs to a filter, a table or a model; choose "
                f"another."
            )
    if metadata is not None and not isinstance(metadata, Mapping):
        raise DtypeError(f"metadata is a {type(metadata).__name__}; pass a dict.")
    return Header(checks.count("step", step), dict(metadata or {}), dict(blobs or {}))


def complete_there(folder: Path, overwrite: bool) -> CheckpointManifest | None:
    """Returns the checkpoint that would be replaced; None if there is none or it cannot be read."""
    if not has_manifest(folder):
        return None
    if not overwrite:
        raise CheckpointExistsError(
            f"{folder} holds a checkpoint; save to another folder, or pass overwrite=True."
        )
    try:
        return read_manifest(folder)
    except CheckpointError:
        return None  # damaged: its files stay until the new one is complete


def clean_before(folder: Path, old: CheckpointManifest | None) -> None:
    """Removes what interrupted saves left, except files that an unreadable manifest may need."""
    try:
        if old is not None or not has_manifest(folder):
            clean_folder(folder, old.keeps() if old else set())
        remove([folder / (MANIFEST + PART)])
    except OSError as error:
        raise disk_error(folder, error, complete=False) from error


def clean_after(folder: Path, new: CheckpointManifest) -> None:
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
    """Removes a folder that a save made and left empty."""
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
