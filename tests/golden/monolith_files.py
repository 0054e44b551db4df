"""Situations of `tables::must_raise` that concern Monolith's files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from hedgerow.monolith.files.exporter import export_table, export_tables
from hedgerow.monolith.files.importer import import_table, import_tables
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.monolith_rules import MonolithSgd


def _table(dim: int = 2) -> HostTable:
    table = HostTable(TableConfig("golden", (Segment(dim, Zeros(), MonolithSgd()),)))
    table.assign(torch.arange(4), torch.ones(4, dim))
    return table


def _restored(
    several: bool, target: HostTable, change: Callable[[Path], object] = lambda folder: None
) -> None:
    """Saves a table of dim 2 to three files, changes the folder, restores into `target`."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "saved"
        if several:
            export_tables({"golden": _table()}, base, files=3)
            change(Path(folder))
            import_tables(base, {"golden": target})
        else:
            export_table(_table(), base, files=3)
            change(Path(folder))
            import_table(base, target)


def _remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _remove_one(folder: Path) -> None:
    (folder / "saved-00001-of-00003").unlink()


def _rename_one(folder: Path) -> None:
    (folder / "saved-00001-of-00003").rename(folder / "saved-00001-of-00004")


def _each(
    target: Callable[[], HostTable], change: Callable[[Path], object]
) -> tuple[Callable[[], None], ...]:
    return (
        lambda: _restored(False, target(), change),
        lambda: _restored(True, target(), change),
    )


SITUATIONS: dict[str, tuple[Callable[[], object], ...]] = {
    "restore from a base name with no files": _each(_table, _remove_all),
    "restore where one of N file shards is absent or N disagrees between names": (
        *_each(_table, _remove_one),
        *_each(_table, _rename_one),
    ),
    "restore of a row whose dim differs from the config": (
        *_each(lambda: _table(1), lambda folder: None),
        *_each(lambda: _table(3), lambda folder: None),
    ),
}
