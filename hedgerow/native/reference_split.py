"""Plain numpy twins of the parameter-server path's loops: splits, distinct keys, filled buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .reference_values import at

Ints = NDArray[np.int64]


def _indices(indices_at: int, n: int) -> Ints:
    return at(indices_at, n, np.int64)


def plan_split(
    indices_at: int, n: int, splits: int, blocks: int, starts_at: int, sizes_at: int
) -> int:
    """Counts; the first place whose index is out of range, else -1."""
    indices = _indices(indices_at, n)
    bad = np.flatnonzero((indices < 0) | (indices >= splits))
    if len(bad):
        return int(bad[0])
    starts: Ints = at(starts_at, (blocks, splits), np.int64)
    for block in range(blocks):
        starts[block] = np.bincount(indices[: n * block // blocks], minlength=splits)
    at(sizes_at, splits, np.int64)[:] = np.bincount(indices, minlength=splits)
    return -1


def split_rows(
    indices_at: int,
    n: int,
    splits: int,
    blocks: int,
    starts_at: int,
    rows_at: int,
    row_bytes: int,
    parts_at: Sequence[int],
) -> None:
    """Rows to their splits."""
    indices, rows = _indices(indices_at, n), at(rows_at, (n, row_bytes), np.uint8)
    for k, part_at in enumerate(parts_at):
        chosen = rows[indices == k]
        at(part_at, chosen.shape, np.uint8)[:] = chosen


def join_rows(
    indices_at: int,
    n: int,
    splits: int,
    blocks: int,
    starts_at: int,
    parts_at: Sequence[int],
    row_bytes: int,
    rows_at: int,
) -> None:
    """Rows back from their splits."""
    indices, rows = _indices(indices_at, n), at(rows_at, (n, row_bytes), np.uint8)
    for k, part_at in enumerate(parts_at):
        mine = indices == k
        rows[mine] = at(part_at, (int(mine.sum()), row_bytes), np.uint8)


def split_ragged(
    indices_at: int,
    n: int,
    splits: int,
    blocks: int,
    starts_at: int,
    values_at: int,
    row_splits_at: int,
    rows: int,
    value_parts_at: Sequence[int],
    position_parts_at: Sequence[int],
    part_splits_at: int,
) -> None:
    """Values of ragged rows, their places, and the borders of the rows."""
    indices, values = _indices(indices_at, n), at(values_at, n, np.int64)
    row_splits = at(row_splits_at, rows + 1, np.int64)
    part_splits: Ints = at(part_splits_at, (splits, rows + 1), np.int64)
    for k in range(splits):
        places = np.flatnonzero(indices == k)
        at(value_parts_at[k], len(places), np.int64)[:] = values[places]
        at(position_parts_at[k], len(places), np.int64)[:] = places
        part_splits[k] = [int((places < border).sum()) for border in row_splits]


def unique_with_offsets(
    keys_at: int,
    row_splits_at: int,
    dims: Sequence[int],
    distinct_at: int,
    distinct_splits_at: int,
    offsets_at: int,
    inner_splits_at: int,
) -> int:
    """Distinct keys of each row and the offsets of their vectors; how many keys."""
    row_splits = at(row_splits_at, len(dims) + 1, np.int64).tolist()
    keys = at(keys_at, row_splits[-1], np.int64).tolist()
    found: list[tuple[int, list[int]]] = []
    ends, offset = [0], 0
    for row, dim in enumerate(dims):
        places: dict[int, list[int]] = {}
        for key in keys[row_splits[row] : row_splits[row + 1]]:
            places.setdefault(key, []).append(offset)
            offset += dim
        found += places.items()
        ends.append(len(found))
    flat = [place for _, places in found for place in places]
    inner = np.cumsum([0, *(len(places) for _, places in found)])
    at(distinct_at, len(found), np.int64)[:] = [key for key, _ in found]
    at(distinct_splits_at, len(ends), np.int64)[:] = ends
    at(offsets_at, len(flat), np.int64)[:] = flat
    at(inner_splits_at, len(inner), np.int64)[:] = inner
    return len(found)


def _entries(keys_at: int, row_splits_at: int, dims: Sequence[int]) -> list[tuple[int, int]]:
    """Key and width of each entry."""
    row_splits = at(row_splits_at, len(dims) + 1, np.int64).tolist()
    keys = at(keys_at, row_splits[-1], np.int64).tolist()
    return [
        (key, dim)
        for row, dim in enumerate(dims)
        for key in keys[row_splits[row] : row_splits[row + 1]]
    ]


def check_part(
    keys_at: int,
    row_splits_at: int,
    dims: Sequence[int],
    offsets_at: int,
    n: int,
    inner_splits_at: int,
    known: int,
    floats: int,
) -> tuple[int, int]:
    """The first fault (1 key, 2 borders, 3 window, else 0) and its entry."""
    inner = at(inner_splits_at, known + 1, np.int64).tolist()
    offsets = at(offsets_at, n, np.int64).tolist()
    for entry, (key, dim) in enumerate(_entries(keys_at, row_splits_at, dims)):
        if not 0 <= key < known:
            return 1, entry
        if not 0 <= inner[key] <= inner[key + 1] <= n:
            return 2, entry
        if not all(0 <= o <= floats - dim for o in offsets[inner[key] : inner[key + 1]]):
            return 3, entry
    return 0, 0


def mark_keys(keys_at: int, n: int, seen_at: int) -> bool:
    """Marks keys; whether one was marked before."""
    keys: Ints = at(keys_at, n, np.int64)
    seen = at(seen_at, int(keys.max(initial=-1)) + 1, np.uint8)
    before = bool(seen[keys].any()) or len(set(keys.tolist())) < n
    seen[keys] = 1
    return before


def _windows(
    keys_at: int,
    row_splits_at: int,
    dims: Sequence[int],
    offsets_at: int,
    n: int,
    inner_splits_at: int,
    known: int,
) -> Iterator[tuple[int, int, list[int]]]:
    """Of each entry: where its values start, how many there are, and where they belong."""
    inner = at(inner_splits_at, known + 1, np.int64).tolist()
    offsets = at(offsets_at, n, np.int64).tolist()
    start = 0
    for key, dim in _entries(keys_at, row_splits_at, dims):
        yield start, dim, offsets[inner[key] : inner[key + 1]]
        start += dim


def fill_windows(
    keys_at: int,
    row_splits_at: int,
    dims: Sequence[int],
    offsets_at: int,
    n: int,
    inner_splits_at: int,
    known: int,
    values_at: int,
    value_bytes: int,
    buffer_at: int,
    in_order: bool,
) -> None:
    """Copies each vector to all places of its key."""
    entries = _windows(keys_at, row_splits_at, dims, offsets_at, n, inner_splits_at, known)
    for start, dim, places in entries:
        vector = at(values_at + start * value_bytes, dim * value_bytes, np.uint8)
        for place in places:
            at(buffer_at + place * value_bytes, dim * value_bytes, np.uint8)[:] = vector


def sum_windows(
    keys_at: int,
    row_splits_at: int,
    dims: Sequence[int],
    offsets_at: int,
    n: int,
    inner_splits_at: int,
    known: int,
    grad_at: int,
    wide: bool,
    out_at: int,
) -> None:
    """Sums the windows of each entry's key."""
    dtype = np.dtype(np.float64 if wide else np.float32)
    entries = _windows(keys_at, row_splits_at, dims, offsets_at, n, inner_splits_at, known)
    for start, dim, places in entries:
        out = at(out_at + start * dtype.itemsize, dim, dtype)
        out[:] = 0
        for place in places:
            out += at(grad_at + place * dtype.itemsize, dim, dtype)
