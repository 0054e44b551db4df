"""Distributes the ids of a batch over tables and shards, in the form that a layout expects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ... import native
from ...core import checks
from ...core.errors import DtypeError, InputError
from ...core.ids import Ragged
from ...core.shapes import Int64
from .config import FeatureConfigs, text_of

_SHARED = 1 << 31
_INT32 = 2**31 - 1
_Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ShardedFids:
    """The ids that each shard must look up, and the position of each id's vector.

    Lists are ordered by table, then shard; `flat_...`, `..._row_lengths` and `emb_lengths` by
    shard, then table. The lists are views of `flat_fids` and `flat_row_splits`.
    """

    fid_list: list[Int64[Tensor, "ids"]]
    fid_list_row_splits: list[Int64[Tensor, "features+1"]]
    fid_offset: Int64[Tensor, "ids"]
    feature_offset: Tensor  # int32 [entries + 1]
    nfl_offset: Int64[Tensor, "features+1"]
    batch_size: int
    emb_size: Tensor  # int32: values per list
    flat_fids: Int64[Tensor, "ids"]
    flat_row_splits: Int64[Tensor, "n"]
    table_row_lengths: Tensor  # int32: ids
    shard_row_lengths: Tensor  # int32: ids
    emb_lengths: Tensor  # int32: values


def shard_fids(
    features: Mapping[str, tuple[bool, Ragged]],
    batch_size: int,
    num_shards: int,
    config: FeatureConfigs,
    unique: bool,
) -> ShardedFids:
    """Distributes the ids of a batch, given by feature, to the shards that own them.

    Runs on the CPU.

    A feature is (shared, rows): one row of ids for the whole batch, or one per sample. With
    `unique` each id of a feature is listed once. Features that are not in `config` are ignored.

    >>> from hedgerow.monolith.layouts import LayoutFeature
    >>> config = FeatureConfigs({"f": LayoutFeature("t", "SUM", (4,))}, {})
    >>> rows = Ragged.from_lists([[4, 7], [4]])
    >>> found = shard_fids({"f": (False, rows)}, 2, 2, config, unique=True)
    >>> [ids.tolist() for ids in found.fid_list], found.fid_offset.tolist()
    ([[4], [7]], [0, 4294967296, 0])
    """
    checks.count("batch_size", batch_size)
    checks.count("num_shards", num_shards, least=1)
    checks.flag("unique", unique)
    text_of(config)
    if not isinstance(features, Mapping):
        raise DtypeError(f"features is a {type(features).__name__}; pass a dict by name.")
    rows, nfl, entries = _rows(features, batch_size, config)
    numbers = [value for one in rows for value in one.numbers]
    total = sum(one.ids for one in rows)
    if total > _INT32:
        raise InputError(f"the batch has {total} ids; at most 2^31 - 1 fit: cut it.")
    words = torch.empty(total, dtype=torch.int64)
    offsets = torch.empty(entries + 1, dtype=torch.int32)
    offsets[entries] = total
    counts = np.empty((len(rows), num_shards), np.int64)
    wrong = native.number_fids(
        numbers, num_shards, unique, words.data_ptr(), offsets.data_ptr(), counts.ctypes.data
    )
    if wrong >= 0:
        splits = rows[wrong].splits
        raise InputError(
            f"the row_splits of feature {config.names[wrong]!r} go from {splits[:1].tolist()} to "
            f"{splits[-1:].tolist()}; they must go from 0 to {rows[wrong].ids}, never falling."
        )
    lists = _Lists.of(config, counts)
    flat = torch.empty(total if not unique else int(counts.sum()), dtype=torch.int64)
    native.place_fids(
        numbers,
        lists.tables.tolist(),
        lists.widths.tolist(),
        num_shards,
        lists.rows.ctypes.data,
        lists.values.ctypes.data,
        words.data_ptr(),
        flat.data_ptr(),
    )
    return lists.result(words, offsets, torch.tensor(nfl), batch_size, flat)


@dataclass(frozen=True)
class _ShardRows:
    """One feature's ids in the form of the core. Keeps the tensors alive."""

    values: Tensor
    splits: Tensor
    entry: int

    @property
    def ids(self) -> int:
        return self.values.shape[0]

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        rows = self.splits.shape[0] - 1
        return self.values.data_ptr(), self.splits.data_ptr(), rows, self.ids, self.entry


def _rows(
    features: Mapping[str, tuple[bool, Ragged]], batch_size: int, config: FeatureConfigs
) -> tuple[list[_ShardRows], list[int], int]:
    """Returns each feature's ids by number, the words of nfl_offset, and the number of entries."""
    absent = torch.empty(0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    found: list[_ShardRows] = []
    nfl: list[int] = []
    entry = 0
    for name in config.names:
        shared, values, splits = True, *absent
        if name in features:
            shared, ragged = _pair(name, features[name])
            values, splits = ragged.values, ragged.row_splits
            checks.tensor(f"ids of feature {name!r}", values, torch.int64, (None,))
            wanted = 1 if shared else batch_size
            if ragged.rows != wanted:
                raise InputError(
                    f"feature {name!r} has {ragged.rows} rows; it must have {wanted}: "
                    f"{'one, since it is shared' if shared else 'one per row of the batch'}."
                )
        nfl.append(entry | (_SHARED if shared else 0))
        found.append(_ShardRows(values, splits, entry))
        entry += splits.shape[0] - 1
    return found, [*nfl, entry + 1], entry


def _pair(name: str, value: tuple[bool, Ragged]) -> tuple[bool, Ragged]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise DtypeError(f"feature {name!r} is {value!r}; it must be (shared, Ragged).")
    shared, ragged = value
    if not isinstance(ragged, Ragged) or not isinstance(shared, bool):
        raise DtypeError(f"feature {name!r} must be (shared, Ragged of int64 ids).")
    return shared, ragged


@dataclass(frozen=True)
class _Lists:
    """The start of each feature's part of each list, and the lengths of the lists."""

    tables: _Numbers  # of each feature
    widths: _Numbers  # width of each feature's vectors
    counts: _Numbers  # [features, shards] ids
    rows: _Numbers  # [features, shards] first id in the flat list
    values: _Numbers  # [features, shards] first value in its list
    by_shard: _Numbers  # [shards, tables] ids
    floats: _Numbers  # [shards, tables] values

    @staticmethod
    def of(config: FeatureConfigs, counts: _Numbers) -> _Lists:
        number = {table: i for i, table in enumerate(config.tables)}
        tables = np.array([number[config.features[name].table] for name in config.names], np.int64)
        widths = np.array([config.features[name].width for name in config.names], np.int64)
        shape = (counts.shape[1], len(config.tables))
        rows, values = np.zeros_like(counts), np.zeros_like(counts)
        by_shard, floats = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for table in range(len(config.tables)):
            mine = np.flatnonzero(tables == table)
            for parts, sizes, totals in (
                (rows, counts[mine], by_shard),
                (values, counts[mine] * widths[mine, None], floats),
            ):
                ends = np.cumsum(sizes, axis=0)
                parts[mine], totals[:, table] = ends - sizes, ends[-1]
        if floats.size and floats.max() > _INT32:
            raise InputError(
                f"a shard's vectors of one table take {floats.max()} values; at most 2^31 - 1 can "
                f"be counted: cut the batch, or use more shards."
            )
        before = np.cumsum(by_shard.reshape(-1)).reshape(shape) - by_shard
        rows += before.T[tables] if len(tables) else 0
        return _Lists(tables, widths, counts, rows, values, by_shard, floats)

    def result(
        self, words: Tensor, offsets: Tensor, nfl: Tensor, batch_size: int, flat: Tensor
    ) -> ShardedFids:
        shards, tables = self.by_shard.shape
        members = [np.flatnonzero(self.tables == table) for table in range(tables)]
        splits = [
            np.concatenate([[0], np.cumsum(self.counts[mine, shard])])
            for shard in range(shards)
            for mine in members
        ]
        joined = np.concatenate(splits) if splits else np.zeros(0, np.int64)
        flat_splits = torch.from_numpy(joined.astype(np.int64))
        fids = flat.split(self.by_shard.reshape(-1).tolist()) if tables else []
        cut = flat_splits.split([len(one) for one in splits]) if splits else []
        order = [shard * tables + table for table in range(tables) for shard in range(shards)]
        return ShardedFids(
            fid_list=[fids[i] for i in order],
            fid_list_row_splits=[cut[i] for i in order],
            fid_offset=words,
            feature_offset=offsets,
            nfl_offset=nfl,
            batch_size=batch_size,
            emb_size=_int32(self.floats.T),
            flat_fids=flat,
            flat_row_splits=flat_splits,
            table_row_lengths=_int32(self.by_shard),
            shard_row_lengths=_int32(self.by_shard.sum(1)),
            emb_lengths=_int32(self.floats),
        )


def _int32(numbers: _Numbers) -> Tensor:
    return torch.from_numpy(numbers.reshape(-1).astype(np.int32))
