"""The words of `fid_offset`: which list a vector is in and where, in the original's three ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.shapes import Int64
from .. import arguments, given
from ..library import register
from .config import FeatureConfigs, text_of
from .plan import plan_of

_LOW = 0xFFFFFFFF


def to_element_encoding(
    fid_offset: Int64[Tensor, "ids"],
    version: int,
    config: FeatureConfigs,
    num_shards: int,
    fid_list_row_splits: Sequence[Int64[Tensor, "features+1"]] | None = None,
    *,
    validate: bool = False,
) -> Int64[Tensor, "ids"]:
    """Words of version 1 or 2 as `list << 32 | first value`; of 3 to 5 they are that already.

    Those of 3 to 5 are returned as they are, in the memory of the caller.

    Version 1 counts rows of a list, whose vectors must have one width. Version 2 counts rows of
    one feature's part of a list; `fid_list_row_splits` say how many rows each part has.

    >>> from hedgerow.ops.layout import Feature
    >>> config = FeatureConfigs({"f": Feature("t", "SUM", (4,))}, {})
    >>> to_element_encoding(torch.tensor([0, 3, 2**32 + 1]), 1, config, 2).tolist()
    [0, 12, 4294967300]
    """
    arguments.tensor("fid_offset", fid_offset)
    text, shards = text_of(config), given.whole("num_shards", num_shards)
    if version in (1, 2) and not isinstance(version, bool):
        splits = None
        if fid_list_row_splits is not None:
            splits = arguments.tensors("fid_list_row_splits", fid_list_row_splits)
            for i, one in enumerate(splits):
                given.reachable("fid_offset", fid_offset, f"fid_list_row_splits[{i}]", one)
        return _TO_ELEMENTS(fid_offset, version, text, shards, splits, validate)
    if isinstance(version, bool) or version not in (3, 4, 5):
        raise InputError(f"version is {version!r}; it must be 1 to 5.")
    arguments.typed("fid_offset", fid_offset, (torch.int64,), (None,))
    _check_shards(shards)
    return fid_offset


def _check_shards(num_shards: int) -> None:
    if num_shards < 1:
        raise InputError(f"num_shards is {num_shards}; there is at least one shard.")


def _to_elements(
    fid_offset: Tensor,
    version: int,
    config: str,
    num_shards: int,
    splits: list[Tensor] | None,
    validate: bool,
) -> Tensor:
    _check_shards(num_shards)
    words = arguments.typed("fid_offset", fid_offset, (torch.int64,), (None,))
    found = plan_of(config).config
    if version == 1:
        return _from_rows(words, found, num_shards, validate)
    return _from_feature_rows(words, found, num_shards, splits, validate)


def _shape(fid_offset: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(fid_offset, memory_format=torch.contiguous_format)


_TO_ELEMENTS = register(
    "to_element_encoding(Tensor fid_offset, int version, str config, int num_shards, "
    "Tensor[]? fid_list_row_splits, bool validate) -> Tensor",
    cpu=_to_elements,
    plain=_to_elements,
    shapes=_shape,
)


def _members(config: FeatureConfigs) -> list[list[int]]:
    """The widths of each table's features, by number."""
    widths: dict[str, list[int]] = {table: [] for table in config.tables}
    for name in config.names:
        widths[config.features[name].table].append(config.features[name].width)
    return list(widths.values())


def _joined(lists: Tensor, values: Tensor, validate: bool) -> Tensor:
    if arguments.looks_inside(values, validate) and values.numel() and int(values.max()) > _LOW:
        raise InputError(f"fid_offset leads to value {int(values.max())}; a list has below 2^32.")
    return lists << 32 | values


def _from_rows(words: Tensor, config: FeatureConfigs, shards: int, validate: bool) -> Tensor:
    members = _members(config)
    for table, widths in zip(config.tables, members, strict=True):
        if len(set(widths)) > 1:
            raise InputError(
                f"table {table!r} has vectors {sorted(set(widths))} wide; version 1 needs one "
                f"width a table: use version 2 or 3."
            )
    lists, rows = words >> 32, words & _LOW
    arguments.in_range("list numbers of fid_offset", lists, len(members) * shards, validate)
    width = words.new_tensor([widths[0] for widths in members])
    return _joined(lists, rows * width[lists // shards], validate)


def _from_feature_rows(
    words: Tensor,
    config: FeatureConfigs,
    shards: int,
    splits: Sequence[Tensor] | None,
    validate: bool,
) -> Tensor:
    members = _members(config)
    if splits is None or len(splits) != len(members) * shards:
        raise InputError(
            f"fid_list_row_splits has {'none' if splits is None else len(splits)}; version 2 needs "
            f"{len(members) * shards}, one a table and shard."
        )
    parts = [
        one
        for table, widths in enumerate(members)
        for shard in range(shards)
        for one in _parts(table * shards + shard, widths, splits[table * shards + shard])
    ]
    table = words.new_tensor(parts, dtype=torch.int64).reshape(-1, 4)
    lists, starts, widths, rows = table.unbind(1)
    part, row = words >> 32, words & _LOW
    arguments.in_range("list numbers of fid_offset", part, len(parts), validate)
    if arguments.looks_inside(words, validate) and bool((row >= rows[part]).any()):
        at = int((row >= rows[part]).nonzero()[0])
        raise InputError(
            f"fid_offset[{at}] is row {int(row[at])} of part {int(part[at])}, which has "
            f"{int(rows[part[at]])}."
        )
    return _joined(lists[part], starts[part] + row * widths[part], validate)


def _parts(number: int, widths: list[int], splits: Tensor) -> list[tuple[int, int, int, int]]:
    """List, first value, width and rows of each feature's part of one list."""
    arguments.typed(f"fid_list_row_splits[{number}]", splits, (torch.int64,), (len(widths) + 1,))
    rows = splits.diff().tolist()
    if int(splits[0]) != 0 or any(count < 0 for count in rows):
        raise InputError(
            f"fid_list_row_splits[{number}] is {splits.tolist()}; it must go up from 0."
        )
    found, first = [], 0
    for width, count in zip(widths, rows, strict=True):
        found.append((number, first, width, count))
        first += count * width
    if first > _LOW:
        raise InputError(
            f"fid_list_row_splits[{number}] cuts vectors of {first} values; a list has below 2^32."
        )
    return found
