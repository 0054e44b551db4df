"""A whole checkpoint of the original, whichever way its tables were saved, into new host tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ConfigError, FileMissingError
from ..tables.config import TableConfig
from ..tables.host import HostTable
from .checkpoint_files import file_name, find_bases, find_files
from .importer import Imported, Progress, import_table, import_tables
from .table_rows import OnStateMismatch


@dataclass(frozen=True, slots=True)
class Loaded:
    """New tables by name, and what was read into them."""

    tables: dict[str, HostTable]
    imported: Imported


def bases_of(source: str | Path) -> list[Path]:
    """The base names that `source` stands for: itself, or all in it if it is a folder."""
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
) -> Loaded:
    """Makes the tables of `configs` and fills them from `source`.

    `source` is the base name of files of several tables or of a single one (then give its config
    alone), or a folder in which each table has files under its own name.
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
        return Loaded(tables, Imported(done, skipped, missing))
    if find_files(source).is_multi:
        imported = import_tables(
            source, tables, on_state_mismatch=on_state_mismatch, progress=progress
        )
        return Loaded(tables, imported)
    if len(names) > 1:
        raise ConfigError(
            f"{source} holds a single table, and {len(names)} were configured: {', '.join(names)}. "
            f"Give the config of that table alone."
        )
    only = import_table(
        source, tables[names[0]], on_state_mismatch=on_state_mismatch, progress=progress
    )
    return Loaded(tables, Imported({names[0]: only}))
