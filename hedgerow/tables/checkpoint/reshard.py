"""Copies a checkpoint to another number of shards or another owner rule, without tables."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from ...core.errors import CheckpointError, InputError
from ...core.local_path import local_path
from ...routing.router import Router
from .chain import Chain
from .files import sole_writer
from .increments import copy_rows, router_of
from .manifest import Manifest
from .meter import Report
from .routers import TableRouters
from .save import clean_after, clean_before, complete_there


def reshard(
    source: str | PathLike[str],
    target: str | PathLike[str],
    shards: int,
    *,
    dist_type: str | None = None,
    rows: int | Mapping[str, int] | None = None,
    overwrite: bool = False,
    report: Report | None = None,
) -> Manifest:
    """Writes the rows of `source`, increments included, as a base of `shards` into `target`.

    Every table keeps its rule if `dist_type` is None. `rows`, for all tables or for each by name,
    is for `continuous`. Rows stream through; no table is built.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.arange(100), torch.ones(100, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save_tables([table], folder + "/one")
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
    """The new owner function of a table."""
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
