"""Reads keys from a Parquet, NumPy or text file, at once or in parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import FileDamagedError, FileMissingError, InputError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


_KINDS = ".parquet, .npy, .txt"


def read_keys(path: Path, column: str = "") -> Tensor:
    """Returns all keys of a file in order. `column` is for Parquet files; lists are flattened."""
    import torch

    if not path.is_file():
        raise FileMissingError(f"{path} is no file; name one that ends in {_KINDS}.")
    if column and path.suffix != ".parquet":
        raise InputError(f"--column is {column!r}, but {path} has no columns; leave it out.")
    if path.suffix == ".parquet":
        found = _from_parquet(path, column)
    elif path.suffix == ".npy":
        found = _from_numpy(path)
    elif path.suffix == ".txt":
        found = _from_text(path)
    else:
        raise InputError(f"{path} ends in {path.suffix!r}; keys are read from {_KINDS} files.")
    return torch.from_numpy(as_keys(path, found))


def as_keys(path: Path, found: np.ndarray) -> np.ndarray:
    """Returns integers of any width as int64; uint64 values keep their bits."""
    if found.dtype.kind not in "iu":
        raise InputError(f"{path} holds {found.dtype}; keys are whole numbers.")
    keys = np.ascontiguousarray(found.reshape(-1))
    return keys.view(np.int64) if keys.dtype == np.uint64 else keys.astype(np.int64)


def _from_numpy(path: Path) -> np.ndarray:
    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FileDamagedError(f"{path} is no file of one NumPy array: {error}.") from error
    if not isinstance(found, np.ndarray):  # an archive of several arrays
        found.close()
        raise FileDamagedError(f"{path} is no file of one NumPy array, but an archive.")
    return found


def _from_text(path: Path) -> np.ndarray:
    words = path.read_text(errors="replace").split()
    keys = []
    for number, word in enumerate(words, start=1):
        try:
            key = int(word)
        except ValueError as error:
            raise InputError(
                f"{path}: word {number} is {word!r}; keys are whole numbers."
            ) from error
        if not -(2**63) <= key < 2**64:
            raise InputError(f"{path}: word {number} is {word}; a key has 64 bits.")
        keys.append(key % 2**64)
    return np.array(keys, np.uint64)


def _from_parquet(path: Path, column: str) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        name = parquet_column(path, pq.read_schema(path), column)
        values: Any = pq.read_table(path, columns=[name]).column(name).combine_chunks()
    except pa.ArrowInvalid as error:
        raise FileDamagedError(f"{path} is no Parquet file: {error}.") from error
    return parquet_keys(path, name, values)


def parquet_column(path: Path, schema: Any, column: str) -> str:
    """Returns the name of the column with the keys: the given one, or the only one."""
    name = column or _only(path, schema)
    if name not in schema.names:
        raise InputError(f"{path} has no column {name!r}; it has {', '.join(schema.names)}.")
    return name


def parquet_keys(path: Path, name: str, values: Any) -> np.ndarray:
    """Returns the integers of an Arrow array, with lists flattened and nulls dropped."""
    import pyarrow as pa

    while pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values = values.flatten()
    if not pa.types.is_integer(values.type):
        raise InputError(f"{path}: column {name!r} holds {values.type}; keys are whole numbers.")
    return values.drop_null().to_numpy(zero_copy_only=False)


def _only(path: Path, schema: Any) -> str:
    if len(schema.names) != 1:
        raise InputError(f"{path} has columns {', '.join(schema.names)}; choose one with --column.")
    return schema.names[0]


_ROWS = 65_536  # rows of a Parquet file per part


def stream_keys(path: Path, column: str = "") -> Iterator[np.ndarray]:
    """Yields the keys of a file in order: in batches for a Parquet file, at once for others."""
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
    except (pa.ArrowInvalid, OSError) as error:  # truncated or changed, maybe in a later part
        raise FileDamagedError(f"{path} is no Parquet file: {error}.") from error
