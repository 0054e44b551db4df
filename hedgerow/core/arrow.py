"""Columns of Arrow tables as ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .errors import DtypeError
from .hashing import id64
from .ids import Ragged

Hasher = Callable[[Any, str], NDArray[np.int64]]  # (array of strings, field) -> ids


def hash_one_by_one(strings: Any, field: str) -> NDArray[np.int64]:
    """`id64` of every string of an Arrow array: what needs no compiled core.

    >>> import pyarrow as pa
    >>> hash_one_by_one(pa.array(["Zürich"]), "city").tolist()
    [795450140219139997]
    """
    return np.fromiter((id64(v, field) for v in strings.to_pylist()), np.int64, len(strings))


def is_text(kind: Any) -> bool:
    """Whether a column of this type holds what is hashed: strings or bytes."""
    import pyarrow as pa

    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def ragged_of_column(name: str, column: Any, hasher: Hasher = hash_one_by_one) -> Ragged:
    """Whole numbers or strings, one a row or a list a row; a null cell is empty."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        array = pa.array([], array.type)
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = _numbers(array.value_lengths().fill_null(0)).astype(np.int64)
        return _rows(name, array.flatten(), lengths, hasher)
    lengths = _numbers(array.is_valid().cast("int64"))
    return _rows(name, array.drop_null(), lengths, hasher)


def _rows(name: str, values: Any, lengths: NDArray[np.int64], hasher: Hasher) -> Ragged:
    import pyarrow as pa

    if values.null_count:
        raise DtypeError(
            f"column {name!r} has lists with nulls in them; remove those, for example with "
            f"pyarrow.compute.list_flatten and drop_null."
        )
    kind = values.type
    if is_text(kind):
        ids = hasher(values, name)
    elif pa.types.is_integer(kind):
        wide = values.cast("uint64") if kind == pa.uint64() else values.cast("int64")
        ids = _numbers(wide).view(np.int64).copy()
    else:
        raise DtypeError(
            f"column {name!r} holds {kind}; ids are whole numbers or strings, or lists of either."
        )
    splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return Ragged.trusted(torch.from_numpy(ids), torch.from_numpy(splits))


def _numbers(array: Any) -> NDArray[Any]:
    return array.to_numpy(zero_copy_only=False)
