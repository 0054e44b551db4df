"""Plain numpy twins of rows by id, of windows, and of reordering by shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reference_values import at

_FLOATS: dict[int, Any] = {4: np.float32, 8: np.float64}
_OFFSETS: dict[int, Any] = {4: np.int32, 8: np.int64}
_KEYS: list[Any] = [np.int64, np.float32, np.float64]
_LIMIT = 2**31


def find_rows(
    ids_at: Sequence[int],
    lengths: Sequence[int],
    queries_at: int,
    n: int,
    many: bool,
    out_at: int,
) -> int:
    """The number of each query; the place of the first that is in no list, or -1."""
    numbers: dict[int, int] = {}
    before = 0
    for address, length in zip(ids_at, lengths, strict=True):
        for i, key in enumerate(at(address, length, np.int64).tolist()):
            numbers.setdefault(key, before + i)
        before += length
    queries = at(queries_at, n, np.int64).tolist()
    missing = [i for i, query in enumerate(queries) if query not in numbers]
    if missing:
        return missing[0]
    at(out_at, n, np.int64)[:] = [numbers[query] for query in queries]
    return -1


def _address(rows_at: Sequence[int], lengths: Sequence[int], number: int, row_bytes: int) -> int:
    for address, length in zip(rows_at, lengths, strict=True):
        if number < length:
            return address + number * row_bytes
        number -= length
    raise IndexError(number)


def copy_rows(
    rows_at: Sequence[int],
    lengths: Sequence[int],
    row_bytes: int,
    numbers_at: int,
    n: int,
    many: bool,
    out_at: int,
) -> None:
    """The row of each number."""
    out = at(out_at, (n, row_bytes), np.uint8)
    for i, number in enumerate(at(numbers_at, n, np.int64).tolist()):
        out[i] = at(_address(rows_at, lengths, number, row_bytes), row_bytes, np.uint8)


def add_rows(
    rows_at: Sequence[int],
    lengths: Sequence[int],
    dim: int,
    value_bytes: int,
    numbers_at: int,
    n: int,
    many: bool,
    grads_at: int,
) -> None:
    """Sets rows to the sums of the gradients with their number."""
    dtype = _FLOATS[value_bytes]
    for address, length in zip(rows_at, lengths, strict=True):
        at(address, (length, dim), dtype)[:] = 0
    grads = at(grads_at, (n, dim), dtype)
    for i, number in enumerate(at(numbers_at, n, np.int64).tolist()):
        at(_address(rows_at, lengths, number, dim * value_bytes), dim, dtype)[:] += grads[i]


def _windows(
    offsets_at: Sequence[int],
    lengths: Sequence[int],
    dims: Sequence[int],
    offset_bytes: int,
    size: int,
) -> tuple[list[list[int]], int]:
    """The offsets of each table, and the number of the first window that lies outside, or -1."""
    kind = _OFFSETS[offset_bytes]
    tables = [
        at(address, length, kind).tolist()
        for address, length in zip(offsets_at, lengths, strict=True)
    ]
    inside = [
        0 <= offset <= size - dim
        for offsets, dim in zip(tables, dims, strict=True)
        for offset in offsets
    ]
    return tables, -1 if all(inside) else inside.index(False)


def copy_windows(
    offsets_at: Sequence[int],
    lengths: Sequence[int],
    dims: Sequence[int],
    offset_bytes: int,
    value_bytes: int,
    values_at: int,
    size: int,
    rows_at: Sequence[int],
) -> int:
    """The window of each offset; the number of the first that lies outside, or -1."""
    tables, outside = _windows(offsets_at, lengths, dims, offset_bytes, size)
    if outside >= 0:
        return outside
    values = at(values_at, (size, value_bytes), np.uint8)
    for offsets, dim, address in zip(tables, dims, rows_at, strict=True):
        rows = at(address, (len(offsets), dim, value_bytes), np.uint8)
        for i, offset in enumerate(offsets):
            rows[i] = values[offset : offset + dim]
    return -1


def add_windows(
    offsets_at: Sequence[int],
    lengths: Sequence[int],
    dims: Sequence[int],
    offset_bytes: int,
    value_bytes: int,
    grads_at: Sequence[int],
    scale: float,
    sums_at: int,
    size: int,
) -> int:
    """Sets sums from scaled gradients; the number of the first window outside, or -1."""
    tables, outside = _windows(offsets_at, lengths, dims, offset_bytes, size)
    if outside >= 0:
        return outside
    dtype = _FLOATS[value_bytes]
    sums = at(sums_at, size, dtype)
    sums[:] = 0
    for offsets, dim, address in zip(tables, dims, grads_at, strict=True):
        grads = at(address, (len(offsets), dim), dtype)
        for i, offset in enumerate(offsets):
            sums[offset : offset + dim] += grads[i] * dtype(scale)
    return -1


def reorder(
    keys_at: int,
    kind: int,
    key_stride: int,
    rows_at: int,
    row_bytes: int,
    n: int,
    shards_at: int,
    shard_count: int,
    out_at: int,
    sizes_at: int,
) -> int:
    """The first row of each key by shard, the last seen first; how many there are."""
    dtype = np.dtype(_KEYS[kind])
    keys = [at(keys_at + i * key_stride, 1, dtype).item() for i in range(n)]
    shards = at(shards_at, n, np.int32).tolist()
    rows = at(rows_at, (n, row_bytes), np.uint8)
    seen: set[float] = set()
    by_shard: list[list[int]] = [[] for _ in range(shard_count)]
    for i, key in enumerate(keys):
        if key != key or key not in seen:  # NaN is nothing's equal
            seen.add(key)
            by_shard[shards[i]].insert(0, i)
    order = [i for one in by_shard for i in one]
    at(out_at, (n, row_bytes), np.uint8)[: len(order)] = rows[order]
    at(sizes_at, shard_count, np.int32)[:] = [len(one) for one in by_shard]
    return len(order)


def fused_reorder(
    ids_at: Sequence[int],
    lengths: Sequence[int],
    dims: Sequence[int],
    shard_count: int,
    rank0_empty: bool,
    out_at: int,
    shard_sizes_at: int,
    slot_sizes_at: int,
    offsets_at: int,
) -> tuple[int, int]:
    """Each slot's different ids by shard; how many there are, and the values of their vectors."""
    slots = [at(one, n, np.int64).tolist() for one, n in zip(ids_at, lengths, strict=True)]
    first = int(rank0_empty)
    cells: list[list[int]] = []  # the different ids of each shard and slot
    for shard in range(shard_count):
        for ids in slots:
            owned = [i for i in ids if i % 2**64 % (shard_count - first) + first == shard]
            cells.append(list(dict.fromkeys(owned)))
    at(slot_sizes_at, shard_count * len(slots), np.int32)[:] = [len(cell) for cell in cells]
    total = sum(len(cell) for cell in cells)
    values = sum(len(cell) * dims[c % len(slots)] for c, cell in enumerate(cells))
    if max(total, values) >= _LIMIT:
        return total, min(values, 2**63)
    _place(slots, cells, dims, at(offsets_at, sum(lengths), np.int32))
    at(out_at, total, np.int64)[:] = [i for cell in cells for i in cell]
    by_shard = np.array([len(cell) for cell in cells]).reshape(shard_count, len(slots))
    at(shard_sizes_at, shard_count, np.int32)[:] = by_shard.sum(1)
    return total, values


def _place(
    slots: list[list[int]], cells: list[list[int]], dims: Sequence[int], offsets: NDArray[Any]
) -> None:
    places: list[dict[int, int]] = [{} for _ in slots]
    value = 0
    for c, cell in enumerate(cells):
        slot = c % len(slots)
        for i in cell:
            places[slot][i] = value
            value += dims[slot]
    offsets[:] = [places[m][i] for m, ids in enumerate(slots) for i in ids]
