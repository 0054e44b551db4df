"""Parquet files as batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FileDamagedError
from .arrow_columns import ColumnRoles, check_schema
from .table_stream import TableStream, listed

_READ_ROWS = 65_536  # rows per read; a few MB for typical columns


@dataclass(frozen=True, slots=True)
class _ParquetPart:
    path: Path
    columns: ColumnRoles

    @property
    def name(self) -> str:
        return str(self.path)

    def check(self) -> None:
        with self._open() as file:
            check_schema(file.schema_arrow, self.columns, self.name)

    def _open(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self.path)
        except pa.ArrowInvalid as error:
            raise FileDamagedError(
                f"{self.path} cannot be read as Parquet: {error}. Write it again, or copy it from "
                f"its source."
            ) from error

    def rows(self) -> int:
        with self._open() as file:
            return file.metadata.num_rows

    def tables(self, first_row: int) -> Iterator[Any]:
        import pyarrow as pa

        with self._open() as file:
            check_schema(file.schema_arrow, self.columns, self.name)
            group, skip = 0, first_row
            while group < file.num_row_groups:
                rows = file.metadata.row_group(group).num_rows
                if rows > skip:
                    break
                group, skip = group + 1, skip - rows
            try:
                for part in file.iter_batches(
                    _READ_ROWS,
                    row_groups=list(range(group, file.num_row_groups)),
                    columns=self.columns.read(),
                ):
                    used = part.slice(min(skip, part.num_rows))
                    skip -= part.num_rows - used.num_rows
                    yield pa.Table.from_batches([used])
            except OSError as error:
                raise FileDamagedError(
                    f"{self.path} is damaged: {error}. Write it again, or copy it from its source."
                ) from error


def parquet(
    files: str | Path | Sequence[str | Path],
    batch_size: int,
    *,
    features: Sequence[str],
    dense: Sequence[str] = (),
    label: str | None = None,
    weight: str | None = None,
    fields: Mapping[str, str] | None = None,
    fill: Mapping[str, float] | None = None,
    label_bounds: tuple[float, float] | None = None,
    keys: Sequence[str] = (),
    window_rows: int = 0,
    seed: int = 0,
) -> TableStream:
    """Returns batches of Parquet files. Only the needed columns are read.

    A feature holds whole numbers or strings, one or a list per sample; a null gives a sample
    without ids. Strings are hashed with the column's name, or with `fields[column]`. Timestamps and
    dates become seconds since 1970 in UTC; in a dense column they are float32, which is exact to
    128 seconds today. `fill[column]` replaces nulls and NaN of a dense column or the weights;
    without it they raise an error. Labels outside `label_bounds` raise an error. `keys` are columns
    of any type that are in `batch.keys`. `window_rows` is the number of rows within which rows are
    shuffled.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> path = tempfile.mkdtemp() + "/clicks.parquet"
    >>> pq.write_table(pa.table({"user": [7, 8, 9], "click": [1, 0, 1]}), path)
    >>> for dense, ids, labels in parquet(path, 2, features=["user"], label="click"):
    ...     print(ids.values.tolist(), labels.tolist())
    [7, 8] [1.0, 0.0]
    [9] [1.0]
    """
    columns = ColumnRoles(
        features=features if isinstance(features, str) else tuple(features),
        dense=tuple(dense),
        label=label,
        weight=weight,
        fields=dict(fields or {}),
        fill=dict(fill or {}),
        label_bounds=label_bounds,
        keys=keys if isinstance(keys, str) else tuple(keys),
    )
    parts = [_ParquetPart(path, columns) for path in listed(files)]
    parts[0].check()  # raise for an unknown column now, not at the first batch
    return TableStream(parts, columns, batch_size, window_rows=window_rows, seed=seed)
