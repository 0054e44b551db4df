"""Reads Monolith's table files and checkpoints into host tables, after checking all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ...core import checks
from ...core.checks import unknown
from ...core.errors import (
    ConfigError,
    FileDamagedError,
    FileMissingError,
    InputError,
    NotFiniteError,
)
from ...core.protobuf import WireError
from ...tables.config import TableConfig
from ...tables.host import HostTable
from ...tables.layout import RowLayout
from ...tables.store import Entries
from .entry_dump import (
    NO_VALUES,
    WRITES_NONE,
    DumpForm,
    EntryDump,
    RowShape,
    decode_states,
    form_of,
)
from .records import (
    FileRecord,
    FileSet,
    file_name,
    find_bases,
    find_files,
    read_counts,
    read_records,
)

OnStateMismatch = Literal["error", "reset"]
_BATCH_BYTES = 2**24


class _Mismatch(Exception):  # noqa: N818  (never leaves this file)
    """States in the file do not match those of the table."""


class RowBatch:
    """A reusable buffer for rows of one table. Not thread-safe.

    With `on_state_mismatch="reset"` a row whose saved states do not match the table's optimizers
    keeps its values and gets initial states. Such rows are counted.
    """

    def __init__(self, config: TableConfig, on_state_mismatch: OnStateMismatch = "error") -> None:
        checks.choice("import", "on_state_mismatch", on_state_mismatch, ("error", "reset"))
        self.config, self.layout = config, RowLayout(config)
        self._resets = 0
        self._reset = on_state_mismatch == "reset"
        row_bytes = 4 * (self.layout.dim + self.layout.state_floats) + 16
        self._room = max(1, min(65536, _BATCH_BYTES // row_bytes))
        self._ids = np.empty(self._room, np.int64)
        self._ts = np.empty(self._room, np.int64)
        self._rows = np.empty((self._room, self.layout.dim), np.float32)
        self._states = [self._state_room(i) for i in range(len(config.segments))]
        self._records: list[FileRecord] = []
        optimizers = [] if config.serving else [s.optimizer for s in config.segments]
        self._forms: list[tuple[int, DumpForm | None]] = [
            (i, form_of(o)) for i, o in enumerate(optimizers) if o and o.kind != WRITES_NONE
        ]
        self._shape = self._usual_shape()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def full(self) -> bool:
        """Whether `take` must be called before the next row."""
        return len(self._records) == self._room

    def add(self, record: FileRecord) -> None:
        """Adds one row."""
        self._records.append(record)

    def take(self) -> tuple[Entries, int]:
        """Returns the rows so far and how many have initial states, and empties the batch.

        Raises an error that names table and id if a row does not fit the table.
        """
        n = len(self._records)
        usual = self._take_usual()
        for i in range(n):
            if not usual[i]:
                self._decode(self._records[i], i)
        if self.config.not_finite == "reject":
            self._check_finite(n)
        states = [
            {name: torch.from_numpy(room[:n].copy()) for name, room in segment.items()}
            for segment in self._states
        ]
        try:
            self.layout.join(states, n)
        except InputError as error:
            files = ", ".join(sorted({str(record.file) for record in self._records}))
            raise FileDamagedError(f"table {self.config.name!r} in {files}: {error}") from error
        found = torch.ones(n, dtype=torch.bool)
        rooms = (self._ids, self._rows, self._ts)
        ids, rows, ts = (torch.from_numpy(room[:n].copy()) for room in rooms)
        resets, self._resets = self._resets, 0
        self._records.clear()
        return Entries(ids, found, rows, states, ts), resets

    def _usual_shape(self) -> RowShape | None:
        """Returns the regular row form, or None if states vary in length or do not match."""
        dumps: list[tuple[DumpForm, dict[str, int]]] = []
        for segment, form in self._forms:
            if form is None or form.integers or set(form.floats) != set(self._states[segment]):
                return None
            rooms = self._states[segment].items()
            dumps.append((form, {n: 1 if r.ndim == 1 else r.shape[1] for n, r in rooms}))
        return RowShape(self.layout.dim, dumps)

    def _take_usual(self) -> NDArray[np.bool_]:
        """Decodes the rows in the regular form, and returns which rows these are."""
        usual = np.zeros(len(self._records), np.bool_)
        if self._shape is None:
            return usual
        found = self._shape.decode([record.payload for record in self._records])
        at, start = found.at, self.layout.dim
        usual[at] = True
        self._ids[at], self._rows[at] = found.ids, found.floats[:, :start]
        self._ts[at] = 0 if self.config.serving else found.ts
        for segment, form in self._forms:
            for name in form.floats if form else ():
                room = self._states[segment][name]
                stop = start + (1 if room.ndim == 1 else room.shape[1])
                values = found.floats[:, start:stop]
                room[at] = values[:, 0] if room.ndim == 1 else values
                start = stop
        return usual

    def _decode(self, record: FileRecord, i: int) -> None:
        entry = record.entry()
        if len(entry.values) != self.layout.dim:
            raise InputError(
                f"{self._place(record, entry.id)} has {len(entry.values)} values; the "
                f"configuration gives the table dim {self.layout.dim}. Correct its segments."
            )
        if entry.ts < 0:
            raise InputError(
                f"{self._place(record, entry.id)} has the time {entry.ts}; it must be at least 0."
            )
        self._ids[i], self._rows[i] = entry.id, entry.values
        self._ts[i] = 0 if self.config.serving else entry.ts  # a serving row has no update time
        if self.layout.places:
            self._add_states(record, entry, i)

    def _state_room(self, segment: int) -> dict[str, NDArray[Any]]:
        room: dict[str, NDArray[Any]] = {}
        for place in self.layout.places:
            if place.segment == segment:
                width = self.config.segments[segment].dim
                shape = (self._room, width) if place.state.per == "value" else (self._room,)
                room[place.state.name] = np.empty(shape, place.state.dtype)
        return room

    def _add_states(self, record: FileRecord, entry: EntryDump, i: int) -> None:
        try:
            self._saved_states(entry, i)
        except _Mismatch as error:
            if not self._reset:
                raise InputError(
                    f"{self._place(record, entry.id)} {error}. Give the table the optimizers it "
                    f"was saved with, or import with on_state_mismatch='reset'."
                ) from error
            self._resets += 1
            for place in self.layout.places:
                self._states[place.segment][place.state.name][i] = place.state.initial
        except WireError as error:
            raise FileDamagedError(
                f"{self._place(record, entry.id)} has a damaged optimizer state: {error}."
            ) from error

    def _saved_states(self, entry: EntryDump, i: int) -> None:
        if len(entry.dumps) != len(self._forms):
            raise _Mismatch(
                f"has the states of {len(entry.dumps)} segments; the table has {len(self._forms)}"
            )
        for dump, (segment, form) in zip(entry.dumps, self._forms, strict=True):
            if form is None or dump.number != form.number:
                own = self.config.segments[segment].optimizer
                raise _Mismatch(
                    f"was saved by {dump.kind}; segments[{segment}] has "
                    f"{own.kind if own else 'no optimizer'}"
                )
            floats, integers = decode_states(form, dump.body)
            for name, room in self._states[segment].items():
                if name in form.integers:
                    room[i] = integers.get(name, 0)
                    continue
                values, wanted = floats.get(name, NO_VALUES), 1 if room.ndim == 1 else room.shape[1]
                if len(values) != wanted:
                    raise _Mismatch(
                        f"has {len(values)} values of {form.kind}'s {name!r}; segments[{segment}] "
                        f"needs {wanted}"
                    )
                room[i] = values[0] if room.ndim == 1 else values

    def _check_finite(self, n: int) -> None:
        bad = ~np.isfinite(self._rows[:n]).all(axis=1)
        if bad.any():
            i = int(bad.argmax())
            raise NotFiniteError(
                f"{self._place(self._records[i], int(self._ids[i]))} holds "
                f"{self._rows[i][~np.isfinite(self._rows[i])][0]}; the table rejects what is not "
                f"finite. Leave such rows out with not_finite='drop' in its configuration."
            )

    def _place(self, record: FileRecord, key: int) -> str:
        return f"table {self.config.name!r}, id {key} ({record.file}, record at byte {record.at})"


Progress = Callable[[str, int, int], None]
"""Called with what was done, the steps done and the total number of steps."""


@dataclass(slots=True)
class ImportedTable:
    """The result of an import for one table."""

    rows: int = 0  # read from the files
    inserted: int = 0  # rows whose ids were not in the table
    dropped: int = 0  # non-finite rows, left out
    resets: int = 0  # rows with initial optimizer states


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: tables by name, and names that only one side has."""

    tables: dict[str, ImportedTable]
    only_in_files: tuple[str, ...] = ()  # skipped
    only_in_config: tuple[str, ...] = ()  # left unchanged


def import_table(
    base: str | Path,
    table: HostTable,
    *,
    on_state_mismatch: OnStateMismatch = "error",
    progress: Progress | None = None,
) -> ImportedTable:
    """Replaces the rows of `table` by those of the single-table files of `base`."""
    files = find_files(base)
    if files.is_multi:
        raise InputError(f"{files.base} holds several tables; use import_tables.")
    source = _Source(files, {None: table}, on_state_mismatch, progress)
    source.check()
    table.clear()
    return source.fill()[None]


def import_tables(
    base: str | Path,
    tables: Mapping[str, HostTable],
    *,
    other_names: Mapping[str, Sequence[str]] | None = None,
    on_state_mismatch: OnStateMismatch = "error",
    progress: Progress | None = None,
) -> Imported:
    """Adds the rows of the multi-table files of `base` to `tables`. Equal ids are replaced.

    A table is found under its key, then under its `other_names` in order. Tables that are only in
    the files are skipped. Tables that are only in `tables` are unchanged. The result names both.
    """
    files = find_files(base)
    if not files.is_multi:
        raise InputError(
            f"{files.base} has no metadata: it holds a single table; use import_table."
        )
    saved = dict.fromkeys(name for meta in files.metas for name in read_counts(meta))
    keys = _who_takes_what(saved, tables, other_names or {})
    taken: dict[str | None, HostTable] = {place: tables[key] for place, key in keys.items()}
    source = _Source(files, taken, on_state_mismatch, progress)
    source.check()
    done = source.fill()
    return Imported(
        {key: done[place] for place, key in keys.items()},
        tuple(name for name in saved if name not in keys),
        tuple(name for name in tables if name not in keys.values()),
    )


def _who_takes_what(
    saved: Collection[str],
    tables: Mapping[str, HostTable],
    other_names: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Returns the key of `tables` for each name in the files."""
    keys: dict[str, str] = {}
    for key in other_names:
        if key not in tables:
            unknown("table in other_names", key, tables)
    for key in tables:
        names = (key, *other_names.get(key, ()))
        place = next((name for name in names if name in saved), None)
        if place in keys:
            raise InputError(
                f"tables {keys[place]!r} and {key!r} both take the rows saved as {place!r}; "
                f"correct other_names."
            )
        if place is not None:
            keys[place] = key
    return keys


class _Source:
    """A set of files and the tables for their rows.

    The files are read twice: to check and to import.
    """

    def __init__(
        self,
        files: FileSet,
        tables: Mapping[str | None, HostTable],
        on_state_mismatch: OnStateMismatch,
        progress: Progress | None,
    ) -> None:
        self._files, self._tables = files, tables
        self._on_state_mismatch: OnStateMismatch = on_state_mismatch
        self._progress = progress
        self._steps = 0

    def check(self) -> None:
        """Raises if a file is damaged or a row does not fit."""
        for _ in self._batches("checked"):
            pass

    def fill(self) -> dict[str | None, ImportedTable]:
        """Imports the rows and returns the result of each table."""
        done = {name: ImportedTable() for name in self._tables}
        for name, entries, resets in self._batches("read"):
            applied = self._tables[name].restore(entries)
            result = done[name]
            result.rows += len(entries)
            result.inserted += applied.inserted
            result.dropped += applied.dropped
            result.resets += resets
        return done

    def _batches(self, verb: str) -> Iterator[tuple[str | None, Entries, int]]:
        # Rows of a table are contiguous in a file, so one batch at a time suffices for any number
        # of tables.
        records = read_records(self._files, lambda path: self._show(f"{verb} {path.name}"))
        for name, rows in groupby(records, key=lambda record: record.table):
            if name not in self._tables:
                continue
            batch = RowBatch(self._tables[name].config, self._on_state_mismatch)
            for record in rows:
                batch.add(record)
                if batch.full:
                    yield name, *batch.take()
            if len(batch):
                yield name, *batch.take()

    def _show(self, text: str) -> None:
        self._steps += 1
        if self._progress is not None:
            self._progress(text, self._steps, 2 * len(self._files.files))


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """New tables by name, and the result of the import."""

    tables: dict[str, HostTable]
    imported: Imported


def bases_of(source: str | Path) -> list[Path]:
    """Returns the base names for `source`: itself, or all in it if it is a folder."""
    source = Path(source)
    if not source.is_dir():
        return [find_files(source).base]
    bases = find_bases(source)
    if not bases:
        raise FileMissingError(f"{source} has no files *-*-of-*; is it the .assets folder?")
    return bases


def load_tables(
    source: str | Path,
    configs: Sequence[TableConfig],
    *,
    on_state_mismatch: OnStateMismatch = "error",
    progress: Progress | None = None,
) -> LoadedCheckpoint:
    """Creates the tables of `configs` and imports their rows from `source`.

    `source` is the base name of multi-table files or of single-table files (then give one config),
    or a folder in which each table has files under its own name.
    """
    names = [config.name for config in configs]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"tables are named {names}; give at least one, each name once.")
    tables = {config.name: HostTable(config) for config in configs}
    source, done = Path(source), {}
    if source.is_dir():
        by_file = {file_name(name): name for name in names}
        there = bases_of(source)
        for base in there:
            if base.name in by_file:
                name = by_file[base.name]
                done[name] = import_table(
                    base, tables[name], on_state_mismatch=on_state_mismatch, progress=progress
                )
        skipped = tuple(base.name for base in there if base.name not in by_file)
        missing = tuple(name for name in names if name not in done)
        return LoadedCheckpoint(tables, Imported(done, skipped, missing))
    if find_files(source).is_multi:
        imported = import_tables(
            source, tables, on_state_mismatch=on_state_mismatch, progress=progress
        )
        return LoadedCheckpoint(tables, imported)
    if len(names) > 1:
        raise ConfigError(
            f"{source} holds a single table, and {len(names)} were configured: {', '.join(names)}. "
            f"Give the config of that table alone."
        )
    only = import_table(
        source, tables[names[0]], on_state_mismatch=on_state_mismatch, progress=progress
    )
    return LoadedCheckpoint(tables, Imported({names[0]: only}))


@dataclass(slots=True)
class ListedTable:
    """One table in the files. Single-table files do not contain its name."""

    name: str
    rows: int = 0
    dims: set[int] = field(default_factory=set)  # values per row; more than one entry is suspicious
    optimizers: set[tuple[str, ...]] = field(default_factory=set)  # one kind per segment
    newest_ts: int = 0


@dataclass(frozen=True, slots=True)
class FileListing:
    """A set of files in which every checksum is correct and every row can be read."""

    base: Path
    files: int
    tables: tuple[ListedTable, ...]


def list_tables(
    base: str | Path, progress: Callable[[str, int, int], None] | None = None
) -> FileListing:
    """Reads and checks every row of the files of `base`."""
    files = find_files(base)
    read = 0

    def done(path: Path) -> None:
        nonlocal read
        read += 1
        if progress is not None:
            progress(f"read {path.name}", read, len(files.files))

    names = [name for meta in files.metas for name in read_counts(meta)]
    tables = {name: ListedTable(name) for name in (names if files.is_multi else [files.base.name])}
    for record in read_records(files, done):
        table = tables[record.table if record.table is not None else files.base.name]
        entry = record.entry()
        table.rows += 1
        table.dims.add(len(entry.values))
        table.optimizers.add(tuple(dump.kind for dump in entry.dumps))
        table.newest_ts = max(table.newest_ts, entry.ts)
    return FileListing(files.base, len(files.files), tuple(tables.values()))
