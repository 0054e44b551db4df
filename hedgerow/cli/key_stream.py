"""Reads keys of a file part by part, so that a sample of a large file does not load all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import FileDamagedError
from .key_file import as_keys, parquet_column, parquet_keys, read_keys

if TYPE_CHECKING:
    import numpy as np

_ROWS = 65_536  # of a Parquet file at a time


def stream_keys(path: Path, column: str = "") -> Iterator[np.ndarray]:
    """The keys of a file in its order, in parts: the batches of a Parquet file, all of another."""
    if path.suffix == ".parquet" and path.is_file():
        yield from _batches(path, column)
    else:
        yield read_keys(path, column).numpy()


def _batches(path: Path, column: str) -> Iterator[np.ndarray]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            name = parquet_column(path, file.schema_arrow, column)
            batches: Any = file.iter_batches(batch_size=_ROWS, columns=[name])
            for batch in batches:
                yield as_keys(path, parquet_keys(path, name, batch.column(0)))
    except (pa.ArrowInvalid, OSError) as error:  # cut off or changed, also in a later part
        raise FileDamagedError(f"{path} is no Parquet file: {error}.") from error
