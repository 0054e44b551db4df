"""Loads tables from a checkpoint: checks everything, then replaces the live rows at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ...core import checks
from ...core.errors import CheckpointError, DtypeError, InputError
from ...core.files import local_path
from ..admission import FilterState
from ..config import TableConfig
from ..eviction import join
from ..layout import RowLayout
from ..local_table import LocalTable, SavableFilter
from ..store import Entries, all_found
from .blobs import BlobShard, filters_to_restore, is_filter_blob, is_order_blob, orders_to_restore
from .chain import Chain, ChainFile
from .manifest import ORDER, ROW, TIME, CheckpointManifest, TableSchema, row_bytes, state_column
from .routers import Routers, TableRouters, check_rules
from .save import by_name
from .shard_file import SavedRows
from .workers import Meter, Report, Workers
from .writer import THREADS

OnStateMismatch = Literal["error", "reset"]


class RowConverter:
    """Turns rows of one schema into entries of one table.

    Dims must be equal. If a segment has another optimizer or other states, "reset" starts the
    states of that segment anew. Serving tables take the row alone, at time 0.
    """

    def __init__(
        self, config: TableConfig, saved: TableSchema, on_state_mismatch: OnStateMismatch
    ) -> None:
        self._config, self._layout = config, RowLayout(config)
        self.reset: list[int] = []  # segments whose states start anew
        live = TableSchema.of(config)
        # Version 0.1 saved no order, and the order of another rule has no meaning here.
        self.keeps_order = saved.order is not None and saved.order == live.order
        _check_dims(config.name, saved, live)
        if not config.serving:
            self.reset = _differing(config.name, saved, live, on_state_mismatch)

    def entries(self, rows: SavedRows) -> Entries:
        """Returns the rows as entries of the table."""
        n = len(rows)
        states: list[dict[str, Tensor]] = [{} for _ in self._config.segments]
        for place in self._layout.places:
            name, segment = place.state.name, place.segment
            if segment in self.reset:
                shape = (n, place.stop - place.start) if place.state.per == "value" else (n,)
                dtype = getattr(torch, place.state.dtype)
                states[segment][name] = torch.full(shape, place.state.initial, dtype=dtype)
            else:
                column = rows.columns[state_column(segment, name)]
                states[segment][name] = torch.from_numpy(column)
        ts = torch.from_numpy(rows.columns[TIME])
        if self._config.serving:
            ts = torch.zeros_like(ts)
        return Entries(
            torch.from_numpy(rows.ids),
            all_found(n),
            torch.from_numpy(rows.columns[ROW]),
            states,
            ts,
            torch.from_numpy(rows.columns[ORDER]) if self.keeps_order else None,
        )


def _check_dims(name: str, saved: TableSchema, live: TableSchema) -> None:
    if len(saved.segments) != len(live.segments):
        raise CheckpointError(
            f"table {name!r}: segments: {len(saved.segments)} in the checkpoint, "
            f"{len(live.segments)} in the table; they must be the same."
        )
    for i, (old, new) in enumerate(zip(saved.segments, live.segments, strict=True)):
        if old.dim != new.dim:
            raise CheckpointError(
                f"table {name!r}: segments[{i}].dim: {old.dim} in the checkpoint, {new.dim} in the "
                f"table; they must be the same."
            )


def _differing(
    name: str, saved: TableSchema, live: TableSchema, on_state_mismatch: OnStateMismatch
) -> list[int]:
    differing: list[int] = []
    for i, (old, new) in enumerate(zip(saved.segments, live.segments, strict=True)):
        field, before, now, fix = "optimizer", old.optimizer, new.optimizer, ""
        if before == now:
            field, before, now = "states", _names(old.states), _names(new.states)
        if before == now:
            field, before, now = "bias_correction", old.bias_correction, new.bias_correction
            fix = (
                f"make the table with {old.optimizer}(bias_correction={before!r}) to go on as it "
                f"was trained (version 0.1 had only 'row'), or "
            )
        if before == now:
            continue
        if on_state_mismatch == "error":
            raise CheckpointError(
                f"table {name!r}: segments[{i}].{field}: {before} in the checkpoint, {now} in the "
                f"table; {fix}load with on_state_mismatch='reset' to reset its states."
            )
        differing.append(i)
    return differing


def _names(states: Sequence[object]) -> str:
    return ", ".join(map(str, states)) or "none"


def replace_rows(
    tables: Sequence[tuple[LocalTable, LocalTable]],
    filters: Sequence[tuple[SavableFilter, FilterState]],
) -> None:
    """Swaps rows of live and staged tables and restores filters; an error undoes everything."""
    undo: list[Callable[[], None]] = []
    try:
        for live, staged in tables:
            live.exchange_rows(staged)
            undo.append(partial(live.exchange_rows, staged))
        for filter_, state in filters:
            before = filter_.dump()
            _restore_filter(filter_, state)
            undo.append(partial(filter_.restore, before))
    except BaseException:
        for step in reversed(undo):
            step()
        raise


def _restore_filter(filter_: SavableFilter, state: FilterState) -> None:
    try:
        filter_.restore(state)
    except InputError as error:
        raise CheckpointError(f"the saved counts of a filter: {error}") from error


_AHEAD = 2  # batches per file that wait to go into a table


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a load."""

    rows: dict[str, int]  # per loaded table: the rows that this shard owns
    added: tuple[str, ...]  # tables that are not in the checkpoint, and did not change
    removed: tuple[str, ...]  # tables of the checkpoint that were not loaded
    reset: tuple[str, ...]  # tables with segments whose optimizer states start anew
    step: int
    metadata: dict[str, Any]
    blobs: dict[str, bytes]


class LoadJob:
    """A load whose manifests are read and whose tables fit. Runs once.

    Call `bring`, then `prove` with the results of all shards, then `finish`. Before `finish`, no
    table changes. With `among`, the other shards load at the same time: each checks the checksums
    of its share of the files, and `finish` may only be called after all shards have brought their
    rows.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        tables: Iterable[LocalTable],
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
            name: RowConverter(
                self._live[name].config, self._chain.tables[name].schema, on_state_mismatch
            )
            for name in self._common
        }
        self._among, self._reset = among, on_state_mismatch == "reset"
        self._meter = Meter(sum(m.rows for m in self._chain.manifests), report)
        self._staged: dict[str, LocalTable] = {}
        self._rows: dict[str, int] = {}
        self._in_files: dict[str, int] = {}

    @property
    def shards(self) -> int:
        """The number of shards that the rows go to."""
        return self._owner.place.shards

    def bring(self) -> dict[str, int]:
        """Reads the rows of this shard into staged tables; returns their number per table."""
        chain, owner, place = self._chain, self._owner, self._owner.place
        chain.verify(share=(place.shard, place.shards) if self._among else (0, 1))
        self._blobs = chain.blobs()
        self._filters = filters_to_restore(
            self._blobs, self._live, place, moved=owner.moved(chain), ignore_others=self._reset
        )
        orders = orders_to_restore(self._blobs)
        for name in self._common:
            live = self._live[name]
            # A key in the config replaces the saved one, so that a leaked key can be changed.
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

    def finish(self, *, merge: bool = False) -> LoadResult:
        """Replaces the live rows by the loaded ones, or adds them with `merge`."""
        if merge:
            _merge(self._live, self._staged)
        else:
            pairs = [(self._live[name], self._staged[name]) for name in self._common]
            replace_rows(pairs, self._filters)
        for table in self._staged.values():
            table.clear()
        chain = self._chain
        return LoadResult(
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
    """Decides which rows this shard owns."""

    def __init__(
        self, chain: Chain, names: list[str], router: Routers | None, shard: int, reroute: bool
    ) -> None:
        self._routers = None if router is None else TableRouters.of(router, names)
        self._shard = checks.count("shard", shard)
        self._all_files = bool(chain.increments)  # an id may have moved between their files
        self.place = BlobShard() if self._routers is None else BlobShard(shard, self._shards)
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
        """Returns the tables whose files were written with another router."""
        if self._routers is None:
            return set()
        now = self._routers.by_name
        return {name for name in now if chain.last.router_of(name) != now[name]}

    def needs(self, part: ChainFile) -> bool:
        """Returns whether a file can hold rows of this shard."""
        if self._routers is None or self._all_files:
            return True
        same = part.router == self._routers.by_name[part.file.table]
        return not same or part.file.shard == self._shard

    def share(self, base: CheckpointManifest, folder: Path, table: str) -> int:
        """Returns about how many rows this shard owns; at most what the files have bytes for."""
        if table not in base.tables:
            return 0
        entry = base.tables[table]
        paths = [folder / file.file for file in base.files if file.table == table]
        stored = sum(path.lstat().st_size for path in paths if os.path.lexists(path))
        return min(entry.rows, stored // row_bytes(entry.columns("rows"))) // self._shards

    def choose(self, table: str, rows: SavedRows) -> SavedRows:
        if self._routers is None or self._shards == 1:
            return rows
        owners = self._routers.by_name[table].owners(torch.from_numpy(rows.ids)).numpy()
        return rows.take(owners == self._shard)


def _fill(
    staged: LocalTable, chain: Chain, fit: RowConverter, owner: _Owner, meter: Meter
) -> tuple[int, int]:
    """Puts this shard's rows into an empty table; returns their number and that in the files."""
    name = staged.config.name

    def put(part: ChainFile, rows: SavedRows) -> tuple[int, int]:
        own = owner.choose(name, rows)
        done = staged.restore(fit.entries(own))
        if done.refused or done.dropped:
            raise CheckpointError(
                f"{part.path}: table {name!r} did not take {done.refused + done.dropped} rows; "
                f"they hold invalid values."
            )
        meter.add(len(rows), 0)
        return len(own), len(rows)

    def bring(part: ChainFile) -> tuple[int, int]:
        done: list[tuple[int, int]] = [(0, 0)]
        running: deque[Future[tuple[int, int]]] = deque()
        for rows in part.rows():  # the next rows are read while these go into the table
            running.append(putters.submit(put, part, rows))
            if len(running) > _AHEAD:
                done.append(running.popleft().result())
        return _sums([*done, *(task.result() for task in running)])

    parts = [part for part in chain.parts(name) if owner.needs(part)]
    try:
        with Workers(THREADS) as putters, Workers(THREADS) as readers:
            brought, seen = _sums([(0, 0), *readers.map(bring, parts)])
    except InputError as error:  # a time below 0, or a value that is not finite
        raise CheckpointError(f"{chain.folder}: table {name!r}: {error}") from error
    if staged.size() != brought and not staged.config.skip_zero_embedding:
        raise CheckpointError(
            f"{chain.folder}: table {name!r} has {staged.size()} rows after {brought} were read; "
            f"an id occurs twice in the files."
        )
    in_manifest = chain.base.tables[name].rows if name in chain.base.tables else 0
    return brought, seen if chain.increments else in_manifest


def _sums(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(first for first, _ in pairs), sum(second for _, second in pairs)


def _own_tables(tables: Iterable[LocalTable]) -> dict[str, LocalTable]:
    live = {}
    for name, table in by_name(tables).items():
        if not isinstance(table, LocalTable):
            raise DtypeError(
                f"table {name!r} is a {type(table).__name__}; load into HostTables or DeviceTables."
            )
        live[name] = table
    return live


def _merge(live: dict[str, LocalTable], staged: dict[str, LocalTable]) -> None:
    for name, table in staged.items():
        join(live[name].order, table.order)
        for entries in table.scan():
            live[name].restore(entries)


def load_tables(
    path: str | PathLike[str],
    tables: Iterable[LocalTable],
    *,
    router: Routers | None = None,
    shard: int = 0,
    reroute: bool = False,
    merge: bool = False,
    on_state_mismatch: OnStateMismatch = "error",
    increments: int | None = None,
    report: Report | None = None,
) -> LoadResult:
    """Loads tables from the folder `path`: the base and its increments.

    Every checksum is checked before rows are read. With a `router`, or one per table by name, only
    the rows that `shard` owns are loaded, whatever the number of shards in the files; without one,
    all rows. A table whose files have another routing rule needs `reroute`. Rows are loaded into a
    staged table, which replaces the rows of the live table at the end; admission filters continue
    from their saved counts. With `merge`, rows are added to the existing ones, and filters do not
    change. `increments` loads only the first `increments` increments.

    >>> import tempfile, torch, hedgerow as hr
    >>> config = hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),))
    >>> table, fresh = hr.HostTable(config), hr.HostTable(config)
    >>> _ = table.assign(torch.tensor([7, -1]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save([table], folder + "/step-1", step=1)
    ...     hr.load([fresh], folder + "/step-1").rows
    {'item': 2}
    """
    checks.flag("merge", merge)
    job = LoadJob(
        path,
        tables,
        router=router,
        shard=shard,
        reroute=reroute,
        on_state_mismatch=on_state_mismatch,
        increments=increments,
        report=report,
    )
    rows = job.bring()
    if job.shards == 1:
        job.prove([rows])
    return job.finish(merge=merge)
