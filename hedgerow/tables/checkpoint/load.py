"""Loads tables from a checkpoint: all is proved before a live row changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ...core import checks
from ...core.errors import CheckpointError, DtypeError, InputError
from ...routing.router import Router
from ..host import HostTable
from .chain import Chain, Part
from .filter_blobs import filters_to_restore, is_filter_blob
from .fit import Fit, OnStateMismatch
from .manifest import Manifest
from .meter import Meter, Report
from .routers import Routers, TableRouters
from .save import by_name
from .shard_file import Rows
from .take_over import take_over
from .workers import Workers
from .writer import THREADS

_AHEAD = 2  # batches of a file that wait to go into a table


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load brought."""

    rows: dict[str, int]  # of each table that was loaded: those this shard owns
    added: tuple[str, ...]  # tables that are not in the checkpoint: they are as they were
    removed: tuple[str, ...]  # tables of the checkpoint that nobody asked for
    reset: tuple[str, ...]  # tables with segments whose optimizer states start afresh
    step: int
    metadata: dict[str, Any]
    blobs: dict[str, bytes]


def load_tables(
    path: str | PathLike[str],
    tables: Iterable[HostTable],
    *,
    router: Routers | None = None,
    shard: int = 0,
    reroute: bool = False,
    merge: bool = False,
    on_state_mismatch: OnStateMismatch = "error",
    increments: int | None = None,
    report: Report | None = None,
) -> Loaded:
    """Loads tables from the folder `path`: base and increments, every checksum proved first.

    With a `router`, or one for each table by name, only the rows that `shard` owns are loaded,
    whatever the number of shards in the files; without one, all rows. A table whose files were
    routed by another rule needs `reroute`. Rows go to a table beside the live one, which takes them
    over at the end, and admission filters count on from where they were; with `merge` rows are
    added to what is there, and filters stay as they are. `increments` loads only the first so many.

    >>> import tempfile, torch, hedgerow as hr
    >>> config = hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),))
    >>> table, fresh = hr.HostTable(config), hr.HostTable(config)
    >>> _ = table.assign(torch.tensor([7, -1]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save_tables([table], folder + "/step-1", step=1)
    ...     hr.load_tables(folder + "/step-1", [fresh]).rows
    {'item': 2}
    """
    if on_state_mismatch not in ("error", "reset"):
        raise InputError(f"on_state_mismatch is {on_state_mismatch!r}; use 'error' or 'reset'.")
    live = _host_tables(tables)
    chain = Chain.read(Path(path), increments)
    common = [name for name in live if name in chain.tables]
    owner = _Owner(chain, common, router, shard, checks.flag("reroute", reroute))
    fits = {
        name: Fit(live[name].config, chain.tables[name].schema, on_state_mismatch)
        for name in common
    }
    chain.verify()
    blobs = chain.blobs()
    filters = filters_to_restore(blobs, live, ignore_others=on_state_mismatch == "reset")
    meter = Meter(sum(m.rows for m in chain.manifests), report)
    staged = {name: live[name].beside(owner.share(chain.base, name)) for name in common}
    rows = {name: _fill(staged[name], chain, fits[name], owner, meter) for name in common}
    if checks.flag("merge", merge):
        _merge(live, staged)
    else:
        take_over([(live[name], staged[name]) for name in common], filters)
    for table in staged.values():
        table.clear()
    return Loaded(
        rows=rows,
        added=tuple(name for name in live if name not in chain.tables),
        removed=tuple(name for name in chain.tables if name not in live),
        reset=tuple(name for name in common if fits[name].reset),
        step=chain.last.step,
        metadata=chain.last.metadata,
        blobs={name: data for name, data in blobs.items() if not is_filter_blob(name)},
    )


def check_routing(saved: str, runtime: str, *, reroute: bool, what: str = "the tables") -> bool:
    """Whether rows change their rule; raises where that was not asked for.

    >>> check_routing("roundrobin", "hash_roundrobin", reroute=True)
    True
    """
    if saved != runtime and not reroute:
        raise CheckpointError(
            f"the checkpoint was routed by {saved}, {what} now by {runtime}; pass reroute=True to "
            f"send every row to its new owner."
        )
    return saved != runtime


def check_rules(manifest: Manifest, routers: Mapping[str, Router], *, reroute: bool) -> None:
    """Every table that both have goes by the rule of its files, or `reroute` is set."""
    for name, router in routers.items():
        if name in manifest.tables:
            saved, what = manifest.dist_type_of(name), f"table {name!r} is"
            check_routing(saved, router.dist_type, reroute=reroute, what=what)


class _Owner:
    """Which rows are ours."""

    def __init__(
        self, chain: Chain, names: list[str], router: Routers | None, shard: int, reroute: bool
    ) -> None:
        self._routers = None if router is None else TableRouters.of(router, names)
        self._shard = checks.count("shard", shard)
        if self._routers is None:
            if shard:
                raise InputError(f"shard is {shard} without a router; pass the router too.")
            return
        if shard >= self._routers.default.shards:
            shards = self._routers.default.shards
            raise InputError(f"shard is {shard}; the router has {shards}, from 0.")
        for manifest in chain.manifests:
            check_rules(manifest, self._routers.by_name, reroute=reroute)

    def share(self, base: Manifest, table: str) -> int:
        """About how many rows of the table are ours."""
        rows = base.tables[table].rows if table in base.tables else 0
        return rows if self._routers is None else rows // self._routers.default.shards

    def choose(self, table: str, rows: Rows) -> Rows:
        if self._routers is None or self._routers.default.shards == 1:
            return rows
        owners = self._routers.by_name[table].owners(torch.from_numpy(rows.ids)).numpy()
        return rows.take(owners == self._shard)


def _fill(staged: HostTable, chain: Chain, fit: Fit, owner: _Owner, meter: Meter) -> int:
    """Brings the rows into an empty table, and proves that each came exactly once."""
    name = staged.config.name

    def put(part: Part, rows: Rows) -> int:
        own = owner.choose(name, rows)
        done = staged.restore(fit.entries(own))
        if done.refused or done.dropped:
            raise CheckpointError(
                f"{part.path}: table {name!r} did not take {done.refused + done.dropped} "
                f"rows; they hold values that no row may have."
            )
        meter.add(len(rows), 0)
        return len(own)

    def bring(part: Part) -> int:
        brought = 0
        running: deque[Future[int]] = deque()
        for rows in part.rows():  # the next ones are read while these go into the table
            running.append(putters.submit(put, part, rows))
            if len(running) > _AHEAD:
                brought += running.popleft().result()
        return brought + sum(task.result() for task in running)

    try:
        with Workers(THREADS) as putters, Workers(THREADS) as readers:
            brought = sum(readers.map(bring, chain.parts(name)))
    except InputError as error:  # a time below 0, a value that is not finite
        raise CheckpointError(f"{chain.folder}: table {name!r}: {error}") from error
    if staged.size() != brought and not staged.config.skip_zero_embedding:
        raise CheckpointError(
            f"{chain.folder}: table {name!r} has {staged.size()} rows after {brought} were read; "
            f"an id stands twice in the files."
        )
    return brought


def _host_tables(tables: Iterable[HostTable]) -> dict[str, HostTable]:
    live = {}
    for name, table in by_name(tables).items():
        if not isinstance(table, HostTable):
            raise DtypeError(f"table {name!r} is a {type(table).__name__}; load into HostTables.")
        live[name] = table
    return live


def _merge(live: dict[str, HostTable], staged: dict[str, HostTable]) -> None:
    for name, table in staged.items():
        for entries in table.scan():
            live[name].restore(entries)
