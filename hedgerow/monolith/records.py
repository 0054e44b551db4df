"""Saved rows out of a set of files: which table, which file, where, and the row's bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..core.errors import FileDamagedError
from ..core.protobuf import BYTES, VARINT, Reader, WireError, bytes_field, varint_field
from ..data.record_frames import payloads
from .checkpoint_files import FileSet
from .entry_dump import EntryDump, decode_entry
from .snappy_stream import SnappyReader

_NAME, _ENTRIES = 1, 2  # of MultiHashTableMetadata

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """One saved row, not yet decoded. Files of a single table do not name it."""

    table: str | None
    file: Path
    at: int  # byte of its frame; in files of several tables, of the decompressed stream
    payload: bytes

    def entry(self) -> EntryDump:
        """The row."""
        return _decoded(decode_entry, self.payload, self.file, self.at)


def read_records(files: FileSet, done: Callable[[Path], None] = lambda _: None) -> Iterator[Record]:
    """Every row of every file, checksums checked; `done` hears of each file read to its end."""
    for i, path in enumerate(files.files):
        if files.is_multi:
            yield from _of_several_tables(path, files.metas[i])
        else:
            with path.open("rb") as file:
                for at, payload in payloads(file, str(path)):
                    yield Record(None, path, at, payload)
        done(path)


def read_counts(meta: Path) -> dict[str, int]:
    """Rows of each table in one file, in the order in which they stand there."""
    counts: dict[str, int] = {}
    with meta.open("rb") as file:
        for at, payload in payloads(file, str(meta)):
            name, rows = _decoded(_table_rows, payload, meta, at)
            if name in counts:
                raise FileDamagedError(f"{meta} names table {name!r} twice (record at byte {at}).")
            counts[name] = rows
    return counts


def encode_counts(table: str, rows: int) -> bytes:
    """One record of metadata.

    >>> encode_counts("a", 3).hex()
    '0a01611003'
    """
    return bytes_field(_NAME, table.encode()) + varint_field(_ENTRIES, rows)


def _of_several_tables(path: Path, meta: Path) -> Iterator[Record]:
    counts = read_counts(meta)
    with path.open("rb") as file:
        rows = payloads(SnappyReader(file, str(path)), str(path))
        for table, wanted in counts.items():
            for got in range(wanted):
                record = next(rows, None)
                if record is None:
                    raise FileDamagedError(
                        f"{path} ends after {got} of the {wanted} rows that {meta.name} promises "
                        f"of table {table!r}. Copy both files again."
                    )
                yield Record(table, path, *record)
        extra = next(rows, None)
        if extra is not None:
            raise FileDamagedError(
                f"{path} holds more than the {sum(counts.values())} rows that {meta.name} "
                f"promises (record at byte {extra[0]}). Copy both files again."
            )


def _table_rows(payload: bytes) -> tuple[str, int]:
    name, rows = b"", 0
    reader = Reader(payload)
    for number, wire_type in reader.fields():
        if number == _NAME:
            reader.expect(number, wire_type, BYTES)
            name = reader.bytes()
        elif number == _ENTRIES:
            reader.expect(number, wire_type, VARINT)
            rows = reader.int64()
        else:
            reader.skip(number, wire_type)
    if rows < 0:
        raise WireError(f"a table of {rows} rows")
    try:
        return name.decode(), rows
    except UnicodeDecodeError as error:
        raise WireError(f"a table name that is no UTF-8: {name!r}") from error


def _decoded(decode: Callable[[bytes], T], payload: bytes, file: Path, at: int) -> T:
    try:
        return decode(payload)
    except WireError as error:
        raise FileDamagedError(
            f"{file}: the record at byte {at} has its checksum but is no saved row: {error}. "
            f"Was it written by another program?"
        ) from error
