"""Monolith's table files: their names, their Snappy blocks, and the saved rows in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ...core import checks
from ...core.errors import FileDamagedError, FileMissingError, InputError
from ...core.protobuf import BYTES, VARINT, ProtobufReader, WireError, bytes_field, varint_field
from ...data.tfrecord_format import payloads
from .entry_dump import EntryDump, decode_entry

_NUMBERED = re.compile(r"(?P<base>.+)-(?P<i>\d{5,})-of-(?P<n>\d{5,})", re.DOTALL)
_META = ".meta"


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files of one base name, in order. Only multi-table files have metadata."""

    base: Path
    files: tuple[Path, ...]
    metas: tuple[Path, ...]

    @property
    def is_multi(self) -> bool:
        """Whether each file holds rows of several tables."""
        return bool(self.metas)


def numbered(base: Path, i: int, n: int) -> Path:
    """Returns the name of file `i` of `n`.

    >>> numbered(Path("user"), 0, 2).name
    'user-00000-of-00002'
    """
    return base.with_name(f"{base.name}-{i:05d}-of-{n:05d}")


def meta_base(base: Path) -> Path:
    """Returns the base name of the metadata of `base`.

    >>> meta_base(Path("all")).name
    'all.meta'
    """
    return base.with_name(base.name + _META)


def file_name(table: str) -> str:
    """Returns the file name of a table in a folder.

    >>> file_name("ps:0/user")
    'ps-0-user'
    """
    return table.replace(":", "-").replace("/", "-")


def find_files(base: str | Path) -> FileSet:
    """Returns the files of `base`.

    All n of n must exist, with a single n. Other files are ignored.
    """
    base = Path(base)
    files = _whole_set(base)
    if not files:
        raise FileMissingError(
            f"no files {base.name}-*-of-* in {base.parent}; give the base name that Monolith "
            f"saved under, for example model.ckpt-100.assets/user."
        )
    metas = _whole_set(meta_base(base))
    if metas and len(metas) != len(files):
        raise FileDamagedError(
            f"{base} has {len(files)} files and {len(metas)} files of metadata; every file must "
            f"have one. Copy the missing ones."
        )
    return FileSet(base, files, metas)


def find_bases(folder: Path) -> list[Path]:
    """Returns the sorted base names in a folder, without those of metadata."""
    matches = (_NUMBERED.fullmatch(path.name) for path in _listed(folder))
    names = {match["base"] for match in matches if match}
    metas = {name + _META for name in names}
    return [folder / name for name in sorted(names - metas)]


def first_base(folder: str | Path, names: Sequence[str]) -> Path:
    """Returns the first of a table's names that has files: its shared name, then older ones."""
    if not names:
        raise InputError("names is empty; give the table's shared name, then its other names.")
    folder = Path(folder)
    there = {base.name for base in find_bases(folder)}
    for name in names:
        if file_name(name) in there:
            return folder / file_name(name)
    raise FileMissingError(
        f"table {names[0]!r} has no files in {folder} under any of its names: {', '.join(names)}. "
        f"Found: {', '.join(sorted(there)) or 'none'}."
    )


def file_count(rows: int, files: int = -1) -> int:
    """Returns the number of files to write: as given, or for -1 one per million rows, 1 to 4.

    >>> file_count(10), file_count(2_500_000), file_count(10**9), file_count(10, 7)
    (1, 2, 4, 7)
    """
    if files == -1:
        return min(max(rows // 1_000_000, 1), 4)
    return checks.count("files", files, least=1)


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _whole_set(base: Path) -> tuple[Path, ...]:
    """Returns files 0..n-1 of n, or nothing if there are none. Otherwise raises."""
    found: dict[int, set[int]] = {}
    for path in _listed(base.parent):
        match = _NUMBERED.fullmatch(path.name)
        if match and match["base"] == base.name and path == numbered(base, *_place(match)):
            i, n = _place(match)
            found.setdefault(n, set()).add(i)
    if not found:
        return ()
    if len(found) > 1:
        raise FileDamagedError(
            f"files of {base} say that they are one of {', '.join(map(str, sorted(found)))}; all "
            f"must say the same. Remove those of an older save."
        )
    ((n, seen),) = found.items()
    if len(seen) != n or max(seen) >= n:  # does not loop up to a hostile n
        absent = next(i for i in range(len(seen) + 1) if i not in seen)
        wrong = f"lacks {numbered(base, absent, n).name}" if absent < n else "has too many files"
        raise FileDamagedError(f"{base} {wrong}: {len(seen)} of {n} files are there. Copy them.")
    return tuple(numbered(base, i, n) for i in range(n))


def _place(match: re.Match[str]) -> tuple[int, int]:
    return int(match["i"]), int(match["n"])


_BLOCK_BYTES = 2**18  # frames per block when writing; Monolith's input buffer
MAX_BLOCK_BYTES = 2**26  # compressed or not; larger blocks are damaged


def _codec() -> Any:
    from pyarrow import Codec

    return Codec("snappy")


class SnappyReader:
    """Reads the content of a stream of Snappy blocks. Not thread-safe.

    >>> import io
    >>> file = io.BytesIO()
    >>> writer = SnappyWriter(file)
    >>> writer.write(b"abc" * 10)
    >>> writer.finish()
    >>> SnappyReader(io.BytesIO(file.getvalue()), "demo").read(6)
    b'abcabc'
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name, self._codec = file, name, _codec()
        self._block, self._taken = b"", 0  # the current block, and how much of it was read
        self._at = 0

    def read(self, n: int) -> bytes:
        """Returns the next `n` bytes, or fewer at the end."""
        parts: list[bytes] = []
        while n:
            part = self._block[self._taken : self._taken + n]
            if part:
                parts.append(part)
                self._taken += len(part)
                n -= len(part)
            elif not self._next_block():
                break
        return b"".join(parts)

    def _next_block(self) -> bool:
        head = self._file.read(4)
        if not head:
            return False
        length = int.from_bytes(head, "big")
        if len(head) < 4 or not 0 < length <= MAX_BLOCK_BYTES:
            raise self._damaged(f"a block of {length} bytes; 1 to {MAX_BLOCK_BYTES}")
        block = self._file.read(length)
        if len(block) < length:
            raise self._damaged(f"the file ends after {len(block)} of {length} bytes of a block")
        self._block, self._taken = self._decompressed(block), 0
        self._at += 4 + length
        return True

    def _decompressed(self, block: bytes) -> bytes:
        try:
            size = ProtobufReader(
                block[:10]
            ).varint()  # a block starts with the size of its content
            if size > MAX_BLOCK_BYTES:
                raise self._damaged(f"a block that holds {size} bytes; at most {MAX_BLOCK_BYTES}")
            return self._codec.decompress(block, decompressed_size=size, asbytes=True)
        except (WireError, OSError) as error:
            raise self._damaged(f"no Snappy block ({error})") from error

    def _damaged(self, what: str) -> FileDamagedError:
        return FileDamagedError(
            f"{self._name} is damaged: {what} (block at byte {self._at}). Copy the file from its "
            f"source again; a table saved alone is not compressed."
        )


class SnappyWriter:
    """Writes bytes as Snappy blocks. `finish` writes the last block. Not thread-safe."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._codec = file, _codec()
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        """Adds bytes. Full blocks are written to the file."""
        self._waiting += data
        while len(self._waiting) >= _BLOCK_BYTES:
            self._write_block(bytes(self._waiting[:_BLOCK_BYTES]))
            del self._waiting[:_BLOCK_BYTES]

    def finish(self) -> None:
        """Writes the remaining bytes. The file stays open."""
        if self._waiting:
            self._write_block(bytes(self._waiting))
            self._waiting.clear()

    def _write_block(self, content: bytes) -> None:
        block = self._codec.compress(content, asbytes=True)
        self._file.write(len(block).to_bytes(4, "big") + block)


_NAME, _ENTRIES = 1, 2  # of MultiHashTableMetadata

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One saved row, not yet decoded. `table` is None in single-table files."""

    table: str | None
    file: Path
    at: int  # offset of its frame; in multi-table files in the decompressed stream
    payload: bytes

    def entry(self) -> EntryDump:
        """Decodes the row."""
        return _decoded(decode_entry, self.payload, self.file, self.at)


def read_records(
    files: FileSet, done: Callable[[Path], None] = lambda _: None
) -> Iterator[FileRecord]:
    """Yields every row of every file after checking its checksum. Calls `done` after each file."""
    for i, path in enumerate(files.files):
        if files.is_multi:
            yield from _of_several_tables(path, files.metas[i])
        else:
            with path.open("rb") as file:
                for at, payload in payloads(file, str(path)):
                    yield FileRecord(None, path, at, payload)
        done(path)


def read_counts(meta: Path) -> dict[str, int]:
    """Returns the number of rows of each table in one file, in file order."""
    counts: dict[str, int] = {}
    with meta.open("rb") as file:
        for at, payload in payloads(file, str(meta)):
            name, rows = _decoded(_table_rows, payload, meta, at)
            if name in counts:
                raise FileDamagedError(f"{meta} names table {name!r} twice (record at byte {at}).")
            counts[name] = rows
    return counts


def encode_counts(table: str, rows: int) -> bytes:
    """Returns one record of metadata.

    >>> encode_counts("a", 3).hex()
    '0a01611003'
    """
    return bytes_field(_NAME, table.encode()) + varint_field(_ENTRIES, rows)


def _of_several_tables(path: Path, meta: Path) -> Iterator[FileRecord]:
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
                yield FileRecord(table, path, *record)
        extra = next(rows, None)
        if extra is not None:
            raise FileDamagedError(
                f"{path} holds more than the {sum(counts.values())} rows that {meta.name} "
                f"promises (record at byte {extra[0]}). Copy both files again."
            )


def _table_rows(payload: bytes) -> tuple[str, int]:
    name, rows = b"", 0
    reader = ProtobufReader(payload)
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
