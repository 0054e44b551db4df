"""One Arrow IPC file with rows in batches; it is written batch by batch and read by memory map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import CheckpointError
from .files import HashedFile, check_plain
from .manifest import ID, Column

# Arrow's types; Arrow is loaded only when files are written or read.
ArrowArray = ArrowBatch = ArrowSchema = ArrowType = Any


@dataclass(frozen=True, slots=True, eq=False)
class SavedRows:
    """Rows of one table: one array per column, [n] or [n, width], all with the same n."""

    columns: Mapping[str, np.ndarray]

    @property
    def ids(self) -> np.ndarray:
        """The column of ids."""
        return self.columns[ID]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, which: np.ndarray | slice) -> SavedRows:
        """Returns the rows at these positions, or where a mask is True."""
        return SavedRows({name: column[which] for name, column in self.columns.items()})


def arrow_schema(columns: Sequence[Column]) -> ArrowSchema:
    """Returns the Arrow schema of these columns; no value may be null."""
    import pyarrow as pa

    def type_of(column: Column) -> ArrowType:
        plain = pa.int64() if column.dtype == "int64" else pa.float32()
        if column.width is None:
            return plain
        return pa.list_(pa.field("item", plain, nullable=False), column.width)

    return pa.schema([pa.field(c.name, type_of(c), nullable=False) for c in columns])


class RowsWriter:
    """Writes rows as an Arrow file to any object with `write`, batch by batch. Single-owner."""

    def __init__(self, out: Any, columns: Sequence[Column]) -> None:
        import pyarrow as pa

        self._columns = tuple(columns)
        self._schema = arrow_schema(columns)
        self._writer: Any = pa.ipc.new_file(pa.PythonFile(out, "w"), self._schema)

    def write(self, rows: SavedRows) -> None:
        """Appends rows."""
        import pyarrow as pa

        arrays = [
            _arrow_array(np.ascontiguousarray(rows.columns[c.name]), field.type)
            for c, field in zip(self._columns, self._schema, strict=True)
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()


class ShardWriter:
    """Writes one file, batch by batch; `behind` is that of `HashedFile`. Single-owner."""

    def __init__(self, path: Path, columns: Sequence[Column], *, behind: bool = False) -> None:
        self.rows = 0
        self.sha256 = ""
        self._file = HashedFile(path, behind=behind)
        self._writer = RowsWriter(self._file, columns)

    @property
    def name(self) -> str:
        """The file's name."""
        return self._file.path.name

    @property
    def file_bytes(self) -> int:
        """The bytes written so far."""
        return self._file.file_bytes

    def write(self, rows: SavedRows) -> None:
        """Appends rows."""
        self._writer.write(rows)
        self.rows += len(rows)

    def finish(self) -> None:
        """Ends the file and flushes it to the disk."""
        self._writer.close()
        self.sha256 = self._file.publish()

    def abandon(self) -> None:
        """Stops writing; the file stays incomplete."""
        self._file.close()


def _arrow_array(values: np.ndarray, kind: ArrowType) -> ArrowArray:
    """Returns an Arrow array on the same memory."""
    import pyarrow as pa

    flat = values.reshape(-1)
    if not pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(flat)])
    items = pa.Array.from_buffers(kind.value_type, len(flat), [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_buffers(kind, len(values), [None], children=[items])


def read_shard(path: Path, columns: Sequence[Column], rows: int) -> Iterator[SavedRows]:
    """Yields the batches of a file; checks its schema and rows.

    The caller has checked the checksum.
    """
    import pyarrow as pa

    check_plain(path)
    try:
        with pa.memory_map(str(path)) as source:
            yield from read_rows(source, path, columns, rows)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_rows(
    source: Any, where: object, columns: Sequence[Column], rows: int
) -> Iterator[SavedRows]:
    """Yields the batches of an Arrow file in memory; errors call it `where`."""
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(source)
        if not reader.schema.equals(arrow_schema(columns)):
            raise CheckpointError(
                f"{where} has the columns {_shown(reader.schema)}; the manifest says "
                f"{_shown(arrow_schema(columns))}."
            )
        seen = 0
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            batch.validate(full=True)
            seen += batch.num_rows
            yield _rows(where, batch, columns)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{where} is no readable Arrow file: {error}.") from error
    if seen != rows:
        raise CheckpointError(f"{where} holds {seen} rows where the manifest says {rows}.")


def _rows(where: object, batch: ArrowBatch, columns: Sequence[Column]) -> SavedRows:
    """Copies a batch, so that its rows outlive the memory map and can be written to."""
    arrays = {}
    for i, column in enumerate(columns):
        array: Any = batch.column(i)
        if array.null_count:
            raise CheckpointError(f"{where}: column {column.name!r} holds nulls; none may.")
        values = _values(array.flatten() if column.width is not None else array, column.dtype)
        width = column.width
        arrays[column.name] = values if width is None else values.reshape(-1, width)
    return SavedRows(arrays)


def _values(plain: ArrowArray, dtype: str) -> np.ndarray:
    """Returns a copy of plain numbers. Arrow's `to_numpy` would load pandas, in a second."""
    if not len(plain):
        return np.empty(0, dtype)
    offset_bytes = plain.offset * np.dtype(dtype).itemsize
    return np.frombuffer(plain.buffers()[1], dtype, len(plain), offset_bytes).copy()


def _shown(schema: ArrowSchema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
