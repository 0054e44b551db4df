"""The original's table files into host tables. Everything is checked before a row changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ..core.checks import unknown
from ..core.errors import InputError
from ..tables.host import HostTable
from ..tables.store import Entries
from .checkpoint_files import FileSet, find_files
from .records import read_counts, read_records
from .table_rows import OnStateMismatch, RowBatch

Progress = Callable[[str, int, int], None]
"""Called with what was done, steps done and steps in all."""


@dataclass(slots=True)
class ImportedTable:
    """What an import did to one table."""

    rows: int = 0  # read from the files
    inserted: int = 0  # of them, ids that the table did not have
    dropped: int = 0  # of them, not finite and left out
    resets: int = 0  # of them, with fresh optimizer states


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: tables by name, and the names that only one side knows."""

    tables: dict[str, ImportedTable]
    only_in_files: tuple[str, ...] = ()  # skipped
    only_in_config: tuple[str, ...] = ()  # left as they were


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
    """Adds the rows of the multi-table files of `base` to `tables`, replacing equal ids.

    A table is looked for under its key, then under its `other_names` in order. Tables that only the
    files have are skipped, those that only `tables` has stay as they are; the result names both.
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
    """Name in the files to key of `tables`."""
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
    """A set of files and the tables their rows go to; read twice, to check and to fill."""

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
        """Writes the rows."""
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
        # Rows of a table stand together in a file: one batch at a time, however many tables.
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
