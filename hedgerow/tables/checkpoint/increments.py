"""Increments of a checkpoint: save, compact, and copy to another number of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...core import checks
from ...core.errors import CheckpointError, InputError
from ...core.files import local_path
from ...core.shapes import Int64
from ...routing.router import Router
from ..local_table import LocalTable
from ..store import Entries
from .chain import Chain, increments_folder
from .files import chunks_of, make_folder, remove, sole_writer
from .manifest import MANIFEST, CheckpointManifest, TableSchema
from .routers import Routers, TableRouters, check_same_shards
from .save import (
    ChangedKeys,
    HeldTable,
    Keep,
    Saveable,
    by_name,
    checked_header,
    clean_after,
    clean_before,
    complete_there,
    hold_tables,
    kept,
    plain_config,
    rows_of,
)
from .shard_file import SavedRows
from .workers import Meter, Report
from .writer import Dense, Header, TableSource, disk_error, write_checkpoint

_SLICE_ROWS = 65536


class Readable(Saveable, Protocol):
    """A table that returns whole rows by id."""

    def entries(self, keys: Int64[Tensor, "n"]) -> Entries:
        """Returns rows, states and times; `found` says which ids have a row."""
        ...


def save_increment(
    path: str | PathLike[str],
    tables: Iterable[Readable],
    changed: Mapping[str, Int64[Tensor, "n"]] | None = None,
    *,
    consumer: str | None = None,
    router: Routers | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    blobs: Mapping[str, bytes] | None = None,
    keep: Keep | None = None,
) -> CheckpointManifest:
    """Adds an increment to the checkpoint in `path`: the present rows of the `changed` ids.

    Instead of `changed`, pass the `consumer` of touched keys that was passed to the previous save.
    It knows the changed ids, and gets them back if the save fails. An id is saved as a deletion if
    it has no row, if its row has expired, or if `keep` drops it. All rows are of one instant:
    writers on other threads wait while the rows are copied. Routing rules and number of shards are
    those of the checkpoint; `router` is used for tables that the checkpoint does not have yet.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.tensor([7, 8]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save([table], folder)
    ...     _ = table.erase(torch.tensor([7]))
    ...     done = hr.save_increment([table], folder, {"item": torch.tensor([7, 8])}, step=2)
    >>> done.number, done.rows, done.tables["item"].deletions
    (1, 1, 1)
    """
    named, folder = by_name(tables), local_path(path)
    if (changed is None) == (consumer is None):
        raise InputError("pass either changed= or consumer=, and not both.")
    for name, ids in (changed or {}).items():
        if name not in named:
            checks.unknown("table", name, named)
        checks.tensor(f"changed[{name!r}]", ids, torch.int64, (None,))
    asked = checked_header(step, metadata, blobs)
    Chain.read(folder)  # reports a missing base before a folder is locked
    with sole_writer(folder):
        chain = Chain.read(folder)
        changes = None if consumer is None else ChangedKeys(named, consumer)
        try:
            frozen = _Instant(chain, named, changed, changes, keep)
            manifest = _write(chain, frozen, asked, router)
        except BaseException:
            if changes is not None:
                changes.give_back()
            raise
        if changes is not None:
            changes.settle(manifest.checksum)
        return manifest


class _Instant:
    """The changed rows of all tables and their filters, at one instant."""

    def __init__(
        self,
        chain: Chain,
        named: Mapping[str, Saveable],
        changed: Mapping[str, Int64[Tensor, "n"]] | None,
        changes: ChangedKeys | None,
        keep: Keep | None,
    ) -> None:
        self.sources: list[TableSource] = []
        self.rows = 0

        def read(frozen: dict[str, HeldTable]) -> None:
            known = changed or {}
            if changes is not None:
                changes.take()
                known = changes.since(chain.last.saved_as(), chain.folder)
            self.rows = sum(len(ids) for ids in known.values())
            for name, ids in known.items():
                wanted = keep or (frozen[name].keep if frozen[name].rule else None)
                self.sources.append(_changes(named[name], ids, chain, wanted))  # pyright: ignore[reportArgumentType]

        with ExitStack() as held:
            self.blobs = hold_tables(named, held, read).blobs


def _write(
    chain: Chain, instant: _Instant, asked: Header, router: Routers | None
) -> CheckpointManifest:
    routers = _routers_of(chain, [source.name for source in instant.sources], router)
    number = chain.last.number + 1
    target = increments_folder(chain.folder, chain.base) / f"{number:08d}"
    try:
        if target.exists():  # an interrupted save
            remove([target])
    except OSError as error:
        raise disk_error(chain.folder, error, complete=False) from error
    make_folder(target)
    blobs = {**asked.blobs, **instant.blobs}
    header = Header(asked.step, asked.metadata, blobs, number, chain.last.checksum)
    meter = Meter(instant.rows)
    try:
        return write_checkpoint(target, instant.sources, routers, header, meter)
    except BaseException:
        if not (target / MANIFEST).exists():
            remove([target])
        raise


def compact(path: str | PathLike[str], *, report: Report | None = None) -> CheckpointManifest:
    """Replaces base and increments by one new base, in place.

    The old files remain the checkpoint until the new base is complete.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.tensor([7, 8]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save([table], folder)
    ...     _ = table.erase(torch.tensor([7]))
    ...     _ = hr.save_increment([table], folder, {"item": torch.tensor([7, 8])})
    ...     compact(folder).rows
    1
    """
    folder = local_path(path)
    Chain.read(folder)
    with sole_writer(folder):
        chain = Chain.read(folder)
        chain.verify()
        clean_before(folder, chain.base)
        routers = _routers_of(chain, chain.tables, None)
        manifest = copy_rows(chain, folder, routers, report, chain.last.saved_as())
        clean_after(folder, manifest)
        return manifest


def copy_rows(
    chain: Chain,
    folder: Path,
    routers: TableRouters,
    report: Report | None,
    repeats: str | None = None,
) -> CheckpointManifest:
    """Writes the newest rows of a verified chain to `folder`, as one base."""

    def source(name: str) -> TableSource:
        entry = chain.tables[name]
        rows = partial(chain.rows, name)
        size = sum(m.tables[name].rows for m in chain.manifests if name in m.tables)
        return TableSource(
            *(name, entry.schema, rows),
            config=entry.config,
            also=entry.also,
            slot_key=entry.slot_key,
            size=size,
        )

    last, dense = chain.last, _dense(chain)
    metadata = last.metadata if dense is None else {**chain.base.metadata, **last.metadata}
    header = Header(last.step, metadata, chain.blobs(), parent=repeats, dense=dense)
    meter = Meter(sum(m.rows for m in chain.manifests), report)
    sources = [source(name) for name in chain.tables]
    return write_checkpoint(folder, sources, routers, header, meter)


def _dense(chain: Chain) -> Dense | None:
    """Returns a copy of the dense part of the base; None if it has none."""
    entry = chain.base.dense
    if entry is None:
        return None

    def write(out: Callable[[bytes], object]) -> None:
        for chunk in chunks_of(chain.folder / entry.file):
            out(chunk)

    return Dense(entry.file_bytes, write)


def router_of(chain: Chain, table: str) -> Router:
    """Returns the router of a table's newest files."""
    known = [manifest for manifest in chain.manifests if table in manifest.tables]
    newest = known[-1] if known else chain.base
    found = newest.router_of(table)
    if found is None:
        raise CheckpointError(
            f"{chain.folder}: table {table!r} was routed by {newest.dist_type_of(table)}, and its "
            f"manifest lacks the number of rows that this rule needs; reshard it to another rule."
        )
    return found


def _routers_of(chain: Chain, names: Iterable[str], asked: Routers | None) -> TableRouters:
    """Returns the routers of the checkpoint, and `asked` for tables that it does not have."""
    routing, chosen = chain.base.routing, {}
    for name in names:
        if asked is None or name in chain.tables:
            chosen[name] = router_of(chain, name)
        else:
            chosen[name] = TableRouters.of(asked, [name]).by_name[name]
            check_same_shards(name, chosen[name], routing.shards, routing.rank0_empty)
    default = chain.base.router_of("") or Router(
        "hash_roundrobin", routing.shards, rank0_empty=routing.rank0_empty
    )
    return TableRouters(default, chosen)


def _changes(table: Readable, ids: Tensor, chain: Chain, keep: Keep | None) -> TableSource:
    """Reads the changed rows of one table at once; each id is either a row or a deletion."""
    name, schema = table.config.name, TableSchema.of(table.config)
    if name in chain.tables and chain.tables[name].schema != schema:
        raise InputError(
            f"table {name!r} has another schema than in {chain.folder}; save a new base."
        )
    where = table.device if isinstance(table, LocalTable) else "cpu"
    slices: list[SavedRows] = []
    gone: list[np.ndarray] = [np.empty(0, np.int64)]
    for part in ids.unique().split(_SLICE_ROWS):
        entries = table.entries(part.to(where)).to("cpu")
        there = entries.found.numpy()
        if keep is not None:
            there = there & kept(keep, entries)
        slices.append(rows_of(entries).take(there))
        gone.append(part.numpy()[~there])

    def rows() -> Iterator[SavedRows]:
        return iter(slices)

    key = table.slot_key if isinstance(table, LocalTable) else None
    return TableSource(
        *(name, schema, rows, np.concatenate(gone)),
        config=plain_config(table.config),
        also=table.config.also,
        slot_key=key,
        size=sum(map(len, slices)),
    )


def reshard(
    source: str | PathLike[str],
    target: str | PathLike[str],
    shards: int,
    *,
    dist_type: str | None = None,
    rows: int | Mapping[str, int] | None = None,
    overwrite: bool = False,
    report: Report | None = None,
) -> CheckpointManifest:
    """Writes the rows of `source`, increments included, to `target` as a base of `shards` shards.

    If `dist_type` is None, every table keeps its routing rule. `rows` is for `continuous`: one
    number for all tables, or one per name. Rows are streamed; no table is built.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.arange(100), torch.ones(100, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save([table], folder + "/one")
    ...     reshard(folder + "/one", folder + "/four", 4).routing.shards
    4
    """
    here, there = local_path(source), local_path(target)
    if here.resolve() == there.resolve():
        raise InputError(f"source and target are both {here}; reshard into another folder.")
    chain = Chain.read(here)
    routers = TableRouters.of(
        {name: _router(chain, name, shards, dist_type, rows) for name in chain.tables}, chain.tables
    )
    if not chain.tables:
        routers = TableRouters(Router(dist_type or "hash_roundrobin", shards, rows=1), {})
    chain.verify()
    with sole_writer(there, make=True):
        old = complete_there(there, overwrite)
        clean_before(there, old)
        manifest = copy_rows(chain, there, routers, report)
        clean_after(there, manifest)
        written = sum(table.rows for table in manifest.tables.values())
    if not chain.increments and written != chain.base.rows:
        raise CheckpointError(f"{here} has {chain.base.rows} rows, {written} were written.")
    return manifest


def _router(
    chain: Chain,
    table: str,
    shards: int,
    dist_type: str | None,
    rows: int | Mapping[str, int] | None,
) -> Router:
    """Returns the new router of a table."""
    given = rows.get(table) if isinstance(rows, Mapping) else rows
    if dist_type is not None:
        known = chain.tables[table].dist_rows if given is None else given
        return Router(dist_type, shards, rows=known)
    old = router_of(chain, table)
    if old.bounds is not None and old.shards != shards:
        raise CheckpointError(
            f"{chain.folder}: table {table!r} has bounds for {old.shards} shards; name the new "
            f"rule with dist_type."
        )
    known = old.rows if given is None else given
    return Router(old.dist_type, shards, rows=known, bounds=old.bounds, rank0_empty=old.rank0_empty)
