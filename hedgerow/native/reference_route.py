"""Plain numpy twins of routing: owners of keys, and keys ordered by their owners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .reference_values import at

Ints = NDArray[np.int64]
_MASK = 2**64 - 1


def _mix64(key: int) -> int:
    key = (key ^ key >> 33) * 0xFF51AFD7ED558CCD & _MASK
    key = (key ^ key >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return key ^ key >> 33


def _place(key: int, code: int, owners: int, block: int, bounds: Sequence[int]) -> tuple[int, int]:
    """The owner of an unsigned key, and its name there."""
    if bounds:
        shard = sum(bound <= key for bound in bounds) - 1
        return (shard, key - bounds[shard]) if shard < owners else (key % owners, key // owners)
    if code == 0:
        inside = key < block * owners
        return (key // block, key % block) if inside else (key % owners, key // owners)
    return (key if code == 1 else _mix64(key)) % owners, key


def route(
    keys_at: int,
    n: int,
    code: int,
    owners: int,
    skipped: int,
    block: int,
    bounds: Sequence[int],
    shards_at: int,
    local_at: int,
) -> None:
    """Owners of keys, and their names there; either output may be absent."""
    keys = at(keys_at, n, np.uint64).tolist()
    places = [_place(key, code, owners, block, bounds) for key in keys]
    if shards_at:
        at(shards_at, n, np.int64)[:] = [skipped + shard for shard, _ in places]
    if local_at:
        at(local_at, n, np.uint64)[:] = np.array([local for _, local in places], np.uint64)


def bucketize(
    keys_at: int,
    row_splits_at: int,
    rows: int,
    feature_rows_at: int,
    codes_at: int,
    numbers: Sequence[Sequence[int]],
    bounds: Sequence[Sequence[int]],
    shards: int,
    weights_at: int,
    local_keys: bool,
    out_lengths_at: int,
    out_keys_at: int,
    out_weights_at: int,
    positions_at: int,
    places_at: int,
) -> None:
    """Keys by owner, then by row, then in their order."""
    row_splits: Ints = at(row_splits_at, rows + 1, np.int64)
    n, features = int(row_splits[-1]), len(numbers)
    keys = at(keys_at, n, np.uint64).tolist()
    feature_rows = at(feature_rows_at, features + 1, np.int64)
    codes = at(codes_at, features, np.int32).tolist()
    key_rows = np.repeat(np.arange(rows), np.diff(row_splits))
    owners, local = np.zeros(n, np.int64), np.zeros(n, np.uint64)
    for i, key in enumerate(keys):
        f = int(np.searchsorted(feature_rows, key_rows[i], side="right")) - 1
        count, skipped, block = numbers[f]
        shard, name = _place(key, codes[f], count, block, bounds[f])
        owners[i], local[i] = shard + skipped, name if local_keys else key
    lengths = at(out_lengths_at, shards * rows, np.int64)
    lengths[:] = np.bincount(owners * rows + key_rows, minlength=shards * rows)
    order = np.argsort(owners, kind="stable")
    at(out_keys_at, n, np.uint64)[:] = local[order]
    if out_weights_at:
        at(out_weights_at, n, np.float32)[:] = at(weights_at, n, np.float32)[order]
    if positions_at:
        at(positions_at, n, np.int64)[:] = (np.arange(n) - row_splits[key_rows])[order]
    if places_at:
        at(places_at, n, np.int64)[order] = np.arange(n)
