"""One load, step by step: rows of this shard beside the live ones, the proof, the exchange."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ...core import checks
from ...core.errors import CheckpointError, DtypeError, InputError
from ...core.local_path import local_path
from ..leave_order import join
from ..own_rows import OwnRows
from .chain import Chain, Part
from .filter_blobs import Place, filters_to_restore, is_filter_blob
from .fit import Fit, OnStateMismatch
from .manifest import Manifest
from .meter import Meter, Report
from .order_blobs import is_order_blob, orders_to_restore
from .routers import Routers, TableRouters
from .rules import check_rules
from .save import by_name
from .schema import row_bytes
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


class LoadJob:
    """A load that has read the manifests and found that the tables fit. Runs once.

    `bring`, then `prove` with what all shards brought, then `finish`; until then nothing changes.
    With `among` the other shards load at the same time: each proves the checksums of its share of
    the files, and nobody may finish before all have brought theirs.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        tables: Iterable[OwnRows],
        *,
        router: Routers | None = None,
        shard: int = 0,
        reroute: bool = False,
        among: bool = False,
        on_state_mismatch: OnStateMismatch = "error",
        increments: int | None = None,
        report: Report | None = None,
    ) -> None:
        if on_state_mismatch not in ("error", "reset"):
            raise InputError(f"on_state_mismatch is {on_state_mismatch!r}; use 'error' or 'reset'.")
        self._live = _own_tables(tables)
        names = {name: table.config.also for name, table in self._live.items()}
        self._chain = Chain.read(local_path(path), increments).as_live(names)
        self._common = [name for name in self._live if name in self._chain.tables]
        flag = checks.flag("reroute", reroute)
        self._owner = _Owner(self._chain, self._common, router, shard, flag)
        self._fits = {
            name: Fit(self._live[name].config, self._chain.tables[name].schema, on_state_mismatch)
            for name in self._common
        }
        self._among, self._reset = among, on_state_mismatch == "reset"
        self._meter = Meter(sum(m.rows for m in self._chain.manifests), report)
        self._staged: dict[str, OwnRows] = {}
        self._rows: dict[str, int] = {}
        self._in_files: dict[str, int] = {}

    @property
    def shards(self) -> int:
        """Over how many shards the rows go."""
        return self._owner.place.shards

    def bring(self) -> dict[str, int]:
        """Reads the rows of this shard into tables beside the live ones; how many of each."""
        chain, owner, place = self._chain, self._owner, self._owner.place
        chain.verify(share=(place.shard, place.shards) if self._among else (0, 1))
        self._blobs = chain.blobs()
        self._filters = filters_to_restore(
            self._blobs, self._live, place, moved=owner.moved(chain), ignore_others=self._reset
        )
        orders = orders_to_restore(self._blobs)
        for name in self._common:
            live = self._live[name]
            # A key that the config names goes before the saved one: one that leaked can be changed.
            own = live.config.slot_key
            key = chain.tables[name].slot_key if own is None else own
            rows = owner.share(chain.base, chain.folder, name)
            staged = live.beside(rows, slot_key=key)
            self._staged[name] = staged
            fit = self._fits[name]
            order = orders.get(chain.old_names.get(name, name))
            if fit.keeps_order and order is not None and staged.order is not None:
                staged.order.restore(order)
            self._rows[name], self._in_files[name] = _fill(staged, chain, fit, owner, self._meter)
        return dict(self._rows)

    def prove(self, brought: Sequence[Mapping[str, int]]) -> None:
        """Raises unless all shards together brought every row of the files."""
        for name, in_files in self._in_files.items():
            of_shards = [rows[name] for rows in brought]
            if sum(of_shards) != in_files:
                raise CheckpointError(
                    f"{self._chain.folder}: table {name!r} has {in_files} rows in its files, and "
                    f"{sum(of_shards)} were loaded ({of_shards} by shard); nothing was changed."
                )

    def finish(self, *, merge: bool = False) -> Loaded:
        """The rows take the place of the live ones, or join them."""
        if merge:
            _merge(self._live, self._staged)
        else:
            pairs = [(self._live[name], self._staged[name]) for name in self._common]
            take_over(pairs, self._filters)
        for table in self._staged.values():
            table.clear()
        chain = self._chain
        return Loaded(
            rows=self._rows,
            added=tuple(name for name in self._live if name not in chain.tables),
            removed=tuple(name for name in chain.tables if name not in self._live),
            reset=tuple(name for name in self._common if self._fits[name].reset),
            step=chain.last.step,
            metadata=chain.last.metadata,
            blobs={
                name: data
                for name, data in self._blobs.items()
                if not is_filter_blob(name) and not is_order_blob(name)
            },
        )


class _Owner:
    """Which rows are ours."""

    def __init__(
        self, chain: Chain, names: list[str], router: Routers | None, shard: int, reroute: bool
    ) -> None:
        self._routers = None if router is None else TableRouters.of(router, names)
        self._shard = checks.count("shard", shard)
        self._all_files = bool(chain.increments)  # an id may have moved between their files
        self.place = Place() if self._routers is None else Place(shard, self._shards)
        if self._routers is None:
            if shard:
                raise InputError(f"shard is {shard} without a router; pass the router too.")
            return
        if shard >= self._shards:
            raise InputError(f"shard is {shard}; the router has {self._shards}, from 0.")
        for manifest in chain.manifests:
            check_rules(manifest, self._routers.by_name, reroute=reroute)

    @property
    def _shards(self) -> int:
        return 1 if self._routers is None else self._routers.default.shards

    def moved(self, chain: Chain) -> set[str]:
        """Tables whose files went by another owner function."""
        if self._routers is None:
            return set()
        now = self._routers.by_name
        return {name for name in now if chain.last.router_of(name) != now[name]}

    def needs(self, part: Part) -> bool:
        """Whether a file can have rows of ours."""
        if self._routers is None or self._all_files:
            return True
        same = part.router == self._routers.by_name[part.file.table]
        return not same or part.file.shard == self._shard

    def share(self, base: Manifest, folder: Path, table: str) -> int:
        """About how many rows of the table are ours; no more than its files have bytes for."""
        if table not in base.tables:
            return 0
        entry = base.tables[table]
        paths = [folder / file.file for file in base.files if file.table == table]
        stored = sum(path.lstat().st_size for path in paths if os.path.lexists(path))
        return min(entry.rows, stored // row_bytes(entry.columns("rows"))) // self._shards

    def choose(self, table: str, rows: Rows) -> Rows:
        if self._routers is None or self._shards == 1:
            return rows
        owners = self._routers.by_name[table].owners(torch.from_numpy(rows.ids)).numpy()
        return rows.take(owners == self._shard)


def _fill(staged: OwnRows, chain: Chain, fit: Fit, owner: _Owner, meter: Meter) -> tuple[int, int]:
    """Brings our rows into an empty table, each exactly once; how many, and how many files have."""
    name = staged.config.name

    def put(part: Part, rows: Rows) -> tuple[int, int]:
        own = owner.choose(name, rows)
        done = staged.restore(fit.entries(own))
        if done.refused or done.dropped:
            raise CheckpointError(
                f"{part.path}: table {name!r} did not take {done.refused + done.dropped} "
                f"rows; they hold values that no row may have."
            )
        meter.add(len(rows), 0)
        return len(own), len(rows)

    def bring(part: Part) -> tuple[int, int]:
        done: list[tuple[int, int]] = [(0, 0)]
        running: deque[Future[tuple[int, int]]] = deque()
        for rows in part.rows():  # the next ones are read while these go into the table
            running.append(putters.submit(put, part, rows))
            if len(running) > _AHEAD:
                done.append(running.popleft().result())
        return _sums([*done, *(task.result() for task in running)])

    parts = [part for part in chain.parts(name) if owner.needs(part)]
    try:
        with Workers(THREADS) as putters, Workers(THREADS) as readers:
            brought, seen = _sums([(0, 0), *readers.map(bring, parts)])
    except InputError as error:  # a time below 0, a value that is not finite
        raise CheckpointError(f"{chain.folder}: table {name!r}: {error}") from error
    if staged.size() != brought and not staged.config.skip_zero_embedding:
        raise CheckpointError(
            f"{chain.folder}: table {name!r} has {staged.size()} rows after {brought} were read; "
            f"an id stands twice in the files."
        )
    in_manifest = chain.base.tables[name].rows if name in chain.base.tables else 0
    return brought, seen if chain.increments else in_manifest


def _sums(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(first for first, _ in pairs), sum(second for _, second in pairs)


def _own_tables(tables: Iterable[OwnRows]) -> dict[str, OwnRows]:
    live = {}
    for name, table in by_name(tables).items():
        if not isinstance(table, OwnRows):
            raise DtypeError(
                f"table {name!r} is a {type(table).__name__}; load into HostTables or DeviceTables."
            )
        live[name] = table
    return live


def _merge(live: dict[str, OwnRows], staged: dict[str, OwnRows]) -> None:
    for name, table in staged.items():
        join(live[name].order, table.order)
        for entries in table.scan():
            live[name].restore(entries)
