"""Copies a checkpoint to another number of shards or another owner rule, without tables."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ...core.errors import CheckpointError, InputError
from ...routing.router import DIST_TYPES, Router
from .chain import Chain
from .files import make_folder, sole_writer
from .increments import copy_rows
from .manifest import Manifest
from .meter import Report
from .save import clean_after, clean_before, complete_there


def reshard(
    source: str | PathLike[str],
    target: str | PathLike[str],
    shards: int,
    *,
    dist_type: str | None = None,
    overwrite: bool = False,
    report: Report | None = None,
) -> Manifest:
    """Writes the rows of `source`, increments included, as a base of `shards` into `target`.

    The rule stays as it is if `dist_type` is None. Rows stream through; no table is built.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.arange(100), torch.ones(100, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save_tables([table], folder + "/one")
    ...     reshard(folder + "/one", folder + "/four", 4).routing.shards
    4
    """
    here, there = Path(source), Path(target)
    if here.resolve() == there.resolve():
        raise InputError(f"source and target are both {here}; reshard into another folder.")
    chain = Chain.read(here)
    rule = chain.base.routing.dist_type if dist_type is None else dist_type
    if dist_type is None and rule not in DIST_TYPES:
        raise CheckpointError(f"{here} was routed by {rule}; name the new rule with dist_type.")
    router = Router(rule, shards, chain.base.routing.rank0_empty and dist_type is None)
    chain.verify()
    make_folder(there)
    with sole_writer(there):
        old = complete_there(there, overwrite)
        clean_before(there, old)
        manifest = copy_rows(chain, there, router, report)
        clean_after(there, manifest)
        written = sum(table.rows for table in manifest.tables.values())
    if not chain.increments and written != chain.base.rows:
        raise CheckpointError(f"{here} has {chain.base.rows} rows, {written} were written.")
    return manifest
