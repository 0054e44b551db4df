"""Writes host tables as Monolith's table files, first under temporary names."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ...core.errors import InputError, ServingTableError
from ...data.tfrecord_format import frame
from ...tables.host import HostTable
from ...tables.store import Entries
from .entry_dump import WRITES_NONE, DumpForm, encode_dump, encode_entry, form_of
from .records import (
    FileSet,
    SnappyWriter,
    encode_counts,
    file_count,
    find_bases,
    meta_base,
    numbered,
)


def export_table(table: HostTable, base: str | Path, *, files: int = -1) -> FileSet:
    """Writes one table to `<base>-<i>-of-<n>`.

    With `files` -1 there is one per million rows, 1 to 4.

    >>> import tempfile
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.monolith_rules import MonolithSgd
    >>> table = HostTable(TableConfig("user", (Segment(2, Zeros(), MonolithSgd()),)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in export_table(table, f"{folder}/user").files]
    ['user-00000-of-00001']
    """
    base, forms = Path(base), _forms(table)
    n = file_count(table.size(), files)
    names = [numbered(base, i, n) for i in range(n)]
    with _new_files(base, names) as opened:
        _write_rows(table, forms, opened)
    return FileSet(base, tuple(names), ())


def export_tables(tables: Mapping[str, HostTable], base: str | Path, *, files: int = -1) -> FileSet:
    """Writes several tables to shared files, with metadata files beside them."""
    if not tables:
        raise InputError("tables is empty; give at least one table to export.")
    base = Path(base)
    order = sorted(tables, key=str.encode)
    forms = {name: _forms(tables[name]) for name in order}
    n = file_count(sum(table.size() for table in tables.values()), files)
    names = [numbered(base, i, n) for i in range(n)]
    metas = [numbered(meta_base(base), i, n) for i in range(n)]
    with _new_files(base, [*names, *metas]) as opened:
        streams = [SnappyWriter(file) for file in opened[:n]]
        for name in order:
            counts = _write_rows(tables[name], forms[name], streams)
            for meta, rows in zip(opened[n:], counts, strict=True):
                meta.write(frame(encode_counts(name, rows)))
        for stream in streams:
            stream.finish()
    return FileSet(base, tuple(names), tuple(metas))


def _forms(table: HostTable) -> list[tuple[int, DumpForm]]:
    """Returns segment index and form of every dump of a row."""
    if table.config.serving:
        raise ServingTableError(
            f"table {table.config.name!r} is a serving table; Monolith saves only training "
            f"tables. Export the table that learns."
        )
    forms: list[tuple[int, DumpForm]] = []
    for i, segment in enumerate(table.config.segments):
        kind = segment.optimizer.kind if segment.optimizer else ""
        form = form_of(segment.optimizer)
        if form is not None:
            forms.append((i, form))
        elif kind != WRITES_NONE:
            raise InputError(
                f"table {table.config.name!r}: segments[{i}] learns with {kind}, whose states "
                f"Monolith cannot hold. Train with one of its own optimizers to export."
            )
    return forms


def _write_rows(
    table: HostTable,
    forms: Sequence[tuple[int, DumpForm]],
    sinks: Sequence[BinaryIO] | Sequence[SnappyWriter],
) -> list[int]:
    """Writes all rows to the files and returns the number of rows in each.

    The first files get one more row if the rows do not divide evenly. Rows inserted meanwhile go to
    the last file.
    """
    size, n = table.size(), len(sinks)
    quotas = [size // n + (i < size % n) for i in range(n)]
    counts, i = [0] * n, 0
    for entries in table.scan():
        for payload in _payloads(entries, forms):
            while i < n - 1 and counts[i] >= quotas[i]:
                i += 1
            sinks[i].write(frame(payload))
            counts[i] += 1
    return counts


def _payloads(entries: Entries, forms: Sequence[tuple[int, DumpForm]]) -> Iterator[bytes]:
    ids, ts, rows = entries.ids.tolist(), entries.ts.tolist(), entries.rows.numpy()
    states = [{name: v.numpy() for name, v in s.items()} for s in entries.states]
    for i, key in enumerate(ids):
        dumps = b"".join(
            encode_dump(
                form,
                {name: states[segment][name][i].reshape(-1) for name in form.floats},
                {name: int(states[segment][name][i]) for name in form.integers},
            )
            for segment, form in forms
        )
        yield encode_entry(key, rows[i], dumps, ts[i])


@contextmanager
def _new_files(base: Path, names: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Yields files that are renamed to `names` after all are written.

    An error removes all of them.
    """
    if base in find_bases(base.parent) or meta_base(base) in find_bases(base.parent):
        raise InputError(f"{base} has files already; export to another name, or remove them.")
    mark = secrets.token_hex(4)
    beside = [name.with_name(f"{name.name}-tmp-{mark}") for name in names]
    opened: list[BinaryIO] = []
    try:
        try:
            for path in beside:
                opened.append(path.open("xb"))
            yield opened
            for file in opened:
                file.flush()
                os.fsync(file.fileno())
        finally:
            for file in opened:
                file.close()
        for path, name in zip(beside, names, strict=True):
            path.rename(name)
        _sync_folder(base.parent)
    except BaseException:
        for path in (*beside, *names):
            path.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
