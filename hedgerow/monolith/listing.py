"""What a set of the original's files holds, found by reading all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .checkpoint_files import find_files
from .records import read_counts, read_records


@dataclass(slots=True)
class ListedTable:
    """One table of the files; a single-table file does not hold its name."""

    name: str
    rows: int = 0
    dims: set[int] = field(default_factory=set)  # values of a row; more than one is suspicious
    optimizers: set[tuple[str, ...]] = field(default_factory=set)  # one kind a segment
    newest_ts: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """A set of files: every checksum was right, every row could be read."""

    base: Path
    files: int
    tables: tuple[ListedTable, ...]


def list_tables(
    base: str | Path, progress: Callable[[str, int, int], None] | None = None
) -> Listing:
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
    return Listing(files.base, len(files.files), tuple(tables.values()))
