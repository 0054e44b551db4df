"""Converts columns of Arrow tables and TorchRec's KeyedJaggedTensors to ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .errors import DtypeError, InputError
from .hashing import id64
from .ids import Ragged
from .shapes import Float32, Int64

Hasher: TypeAlias = "Callable[[Any, str], NDArray[np.int64]]"  # (array of strings, field) -> ids

if TYPE_CHECKING:
    from numpy.typing import NDArray


def hash_one_by_one(strings: Any, field: str) -> NDArray[np.int64]:
    """Returns the `id64` of every string of an Arrow array, without the compiled core.

    >>> import pyarrow as pa
    >>> hash_one_by_one(pa.array(["Zürich"]), "city").tolist()
    [795450140219139997]
    """
    return np.fromiter((id64(v, field) for v in strings.to_pylist()), np.int64, len(strings))


def is_text(kind: Any) -> bool:
    """Returns whether columns of this Arrow type hold strings or bytes, which are hashed to ids."""
    import pyarrow as pa

    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def ragged_of_column(name: str, column: Any, hasher: Hasher = hash_one_by_one) -> Ragged:
    """Returns the ids of an Arrow column: one integer, string or list of them per row.

    A null cell gives an empty row.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # there are no chunks
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


@dataclass(frozen=True, slots=True, eq=False)
class KeyedJagged:
    """The contents of a KeyedJaggedTensor.

    `strides` holds the number of bags of each feature. With a variable batch size a feature stores
    only its distinct bags, and sample s has bag `inverse[f, s]` of feature f. `columns` expands
    them to one bag per sample.
    """

    names: tuple[str, ...]
    values: Int64[Tensor, "n"]
    offsets: Int64[Tensor, "cells + 1"]
    weights: Float32[Tensor, "n"] | None
    strides: tuple[int, ...]
    inverse: Int64[Tensor, "features samples"] | None

    @staticmethod
    def of(jagged: Any) -> KeyedJagged:
        """Reads TorchRec's class or one with the same methods. Its newer methods are optional."""
        values, names, weights = jagged.values(), tuple(jagged.keys()), jagged.weights_or_none()
        if values.dtype.is_floating_point or values.dtype == torch.bool:
            raise DtypeError(
                f"KeyedJaggedTensor.values() has dtype {values.dtype}; ids are whole numbers."
            )
        offsets = jagged.offsets().to(torch.int64)
        strides = _strides(jagged, len(names), offsets.shape[0] - 1)
        return KeyedJagged(
            names,
            values.to(torch.int64),
            offsets,
            None if weights is None else weights.to(torch.float32),
            strides,
            _inverse(jagged, names),
        )

    @property
    def is_expanded(self) -> bool:
        """Returns whether every feature has one bag per sample."""
        if self.inverse is None and any(stride != self.strides[0] for stride in self.strides):
            of_each = ", ".join(f"{n}: {s}" for n, s in zip(self.names, self.strides, strict=True))
            raise InputError(
                f"the KeyedJaggedTensor has different numbers of bags per feature ({of_each}) and "
                f"no inverse_indices, which say what bag each sample has. Make it with "
                f"inverse_indices=(keys, tensor[features, samples]), or with one batch size."
            )
        return self.inverse is None

    def columns(self) -> tuple[dict[str, Ragged], dict[str, Tensor] | None]:
        """Returns the bags of every sample by feature, and the weights by feature."""
        columns: dict[str, Ragged] = {}
        weights: dict[str, Tensor] = {}
        first = 0
        for number, (name, stride) in enumerate(zip(self.names, self.strides, strict=True)):
            splits = self.offsets[first : first + stride + 1]
            columns[name], places = _picked(name, self.values, splits, self._bags(number))
            if self.weights is not None:
                weights[name] = self.weights[places]
            first += stride
        return columns, None if self.weights is None else weights

    def _bags(self, number: int) -> Int64[Tensor, "samples"]:
        stride = self.strides[number]
        if self.inverse is None:
            return torch.arange(stride, device=self.offsets.device)
        bags = self.inverse[number]
        if bags.numel() and not 0 <= int(bags.min()) <= int(bags.max()) < stride:
            raise InputError(
                f"inverse_indices of feature {self.names[number]!r} go from {int(bags.min())} to "
                f"{int(bags.max())}; the feature has bags 0..{stride - 1}."
            )
        return bags


def _picked(
    name: str, values: Tensor, splits: Int64[Tensor, "bags + 1"], bags: Int64[Tensor, "samples"]
) -> tuple[Ragged, Int64[Tensor, "n"]]:
    """Returns the chosen bags one after the other, and the positions of their values."""
    lengths = splits.diff()[bags]
    borders = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    ahead = torch.repeat_interleave(splits[:-1][bags] - borders[:-1], lengths)
    places = ahead + torch.arange(ahead.shape[0], device=ahead.device)
    return Ragged(values[places], borders), places


def _strides(jagged: Any, features: int, cells: int) -> tuple[int, ...]:
    """Returns the number of bags of each feature."""
    if hasattr(jagged, "stride_per_key"):
        strides = tuple(jagged.stride_per_key())  # not plain ints during an export
    else:
        strides = (cells // max(1, features),) * features
    if len(strides) != features or sum(strides) != cells:
        raise InputError(
            f"the KeyedJaggedTensor has {features} keys with strides {list(strides)}, and offsets "
            f"of {cells} bags; strides are one per key and add up to the bags."
        )
    return strides


def _inverse(jagged: Any, names: tuple[str, ...]) -> Int64[Tensor, "features samples"] | None:
    found = jagged.inverse_indices_or_none() if hasattr(jagged, "inverse_indices_or_none") else None
    if found is None or not found[1].numel():
        return None
    keys, bags = list(found[0]), found[1]
    for name in names:
        if name not in keys:
            raise InputError(
                f"inverse_indices of the KeyedJaggedTensor have no row for key {name!r}; they have "
                f"{', '.join(keys)}."
            )
    if bags.dim() != 2 or bags.shape[0] != len(keys):
        raise InputError(
            f"inverse_indices of the KeyedJaggedTensor have shape {tuple(bags.shape)} for "
            f"{len(keys)} keys; they must be [keys, samples]."
        )
    return bags[[keys.index(name) for name in names]].to(torch.int64)
