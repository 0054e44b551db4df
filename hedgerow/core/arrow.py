"""Columns of Arrow tables as ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .errors import DtypeError
from .hashing import id64
from .ids import Ragged


def ragged_of_column(name: str, column: Any) -> Ragged:
    """Whole numbers or strings, one a row or a list a row; a null cell is empty."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        array = pa.array([], array.type)
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = _numbers(array.value_lengths().fill_null(0)).astype(np.int64)
        return _rows(name, array.flatten(), lengths)
    lengths = _numbers(array.is_valid().cast("int64"))
    return _rows(name, array.drop_null(), lengths)


def _rows(name: str, values: Any, lengths: np.ndarray) -> Ragged:
    import pyarrow as pa

    if values.null_count:
        raise DtypeError(
            f"column {name!r} has lists with nulls in them; remove those, for example with "
            f"pyarrow.compute.list_flatten and drop_null."
        )
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        ids = np.fromiter((id64(v, name) for v in values.to_pylist()), np.int64, len(values))
    elif pa.types.is_integer(kind):
        wide = values.cast("uint64") if kind == pa.uint64() else values.cast("int64")
        ids = _numbers(wide).view(np.int64)
    else:
        raise DtypeError(
            f"column {name!r} holds {kind}; ids are whole numbers or strings, or lists of either."
        )
    splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return Ragged(torch.from_numpy(ids.copy()), torch.from_numpy(splits))


def _numbers(array: Any) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)
