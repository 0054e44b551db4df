"""Plain twins of the core's functions on batches of ids: gather, layouts, routing and splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .native_values import at

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


_LOW, _ENTRY = 0xFFFFFFFF, 0x7FFFFFFF
_MEAN, _FIRSTN = 1, 3


class LayoutPlan:
    """The tasks of a configuration."""

    def __init__(self, features: int, numbers: Sequence[int]) -> None:
        self.tasks = [tuple(numbers[i : i + 10]) for i in range(0, len(numbers), 10)]
        self._features = features

    def features(self) -> int:
        """How many features there are."""
        return self._features

    def outputs(self) -> int:
        """How many outputs there are."""
        return max((task[1] + 1 for task in self.tasks), default=0)


class LayoutBatch:
    """Index tensors, and the lengths of the lists of vectors."""

    def __init__(
        self,
        lists: int,
        requests: Sequence[int],
        lengths: Sequence[int],
        nfl_at: int,
        offsets_at: int,
        wide: bool,
        ids_at: int,
    ) -> None:
        self.lists, self.lengths = lists, list(lengths)
        self.requests = [tuple(requests[i : i + 7]) for i in range(0, len(requests), 7)]
        offsets = sum(one[2] + 1 for one in self.requests)
        self.offsets = at(offsets_at, offsets, np.int64 if wide else np.int32).tolist()
        self.ids = at(ids_at, sum(one[4] for one in self.requests), np.int64).tolist()
        self._nfl_at = nfl_at

    def _nfl(self, request: int, feature: int) -> int:
        place = self._nfl_at + 8 * (self.requests[request][0] + feature)
        return int(at(place, 1, np.int64)[0])

    def _entries(self, request: int, feature: int) -> tuple[int, int, bool]:
        first = self._nfl(request, feature)
        end = min(self._nfl(request, feature + 1) & _ENTRY, self.requests[request][2])
        count = max(0, end - (first & _ENTRY))
        return self.requests[request][1] + (first & _ENTRY), count, bool(first >> 31 & 1)

    def _words(self, request: int, entry: int) -> list[int]:
        start = self.requests[request][3]
        return self.ids[start + self.offsets[entry] : start + self.offsets[entry + 1]]

    def check(self, plan: LayoutPlan) -> tuple[int, int, int, int, int]:
        """The first fault: kind, request, feature, place, value."""
        for r in range(len(self.requests)):
            for q in range(plan.features()):
                kind, place, value = self._fault(plan, r, q)
                if kind:
                    return kind, r, q, place, value
        return 0, 0, 0, 0, 0

    def _fault(self, plan: LayoutPlan, r: int, q: int) -> tuple[int, int, int]:
        nfl, _, entries, start, count, _, rows = self.requests[r]
        begin, end = self._nfl(r, q) & _ENTRY, self._nfl(r, q + 1) & _ENTRY
        if end < begin:
            return 1, nfl + q + 1, end
        if end > entries + 1:
            return 2, nfl + q + 1, end
        first, found, shared = self._entries(r, q)
        if found and found != (1 if shared else rows):
            return 3, nfl + q, found
        if not found:
            return 0, 0, 0
        before = 0
        for e in range(first, first + found + 1):
            if not before <= self.offsets[e] <= count:
                return 4, e, self.offsets[e]
            before = self.offsets[e]
        reach = max((t[4] + t[5] for t in plan.tasks if t[0] == q), default=0)
        for i in range(start + self.offsets[first], start + before):
            number, value = (self.ids[i] & (2**64 - 1)) >> 32, self.ids[i] & _LOW
            if number >= self.lists:
                return 5, i, number
            if value + reach > self.lengths[r * self.lists + number]:
                return 6, i, value
        return 0, 0, 0

    def _uses(
        self, plan: LayoutPlan, dtype: Any, lists: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], int, list[NDArray[Any]]]]:
        """Every task, its place in its output's values, and the slices of the row's vectors."""
        for r, (_, _, _, _, _, row, rows) in enumerate(self.requests):
            for task in plan.tasks:
                first, count, shared = self._entries(r, task[0])
                for b in range(rows):
                    words = self._words(r, first + (0 if shared else b)) if count else []
                    values = [
                        at(
                            lists[r * self.lists + (word >> 32)]
                            + np.dtype(dtype).itemsize * ((word & _LOW) + task[4]),
                            task[5],
                            dtype,
                        )
                        for word in words
                    ]
                    yield task, (row + b) * task[6] + task[7], values

    def forward(
        self, plan: LayoutPlan, is_double: bool, lists: Sequence[int], outputs: Sequence[int]
    ) -> None:
        """Sets every output."""
        dtype = np.float64 if is_double else np.float32
        size = np.dtype(dtype).itemsize
        for task, place, values in self._uses(plan, dtype, lists):
            for k in range(task[3]):
                where = outputs[task[1]] + size * (place + k * task[8])
                out = at(where, task[5], dtype)
                if task[2] == _FIRSTN:
                    out[:] = values[k] if k < len(values) else 0
                    continue
                total = np.zeros(task[5], dtype)
                for one in values:
                    total = total + one
                if task[2] == _MEAN and values:
                    total = total / dtype(len(values))
                out[:] = out + total if task[9] else total

    def backward(
        self,
        plan: LayoutPlan,
        is_double: bool,
        grads: Sequence[int],
        scale: float,
        lists: Sequence[int],
    ) -> None:
        """Sets the lists to their gradients."""
        dtype = np.float64 if is_double else np.float32
        size = np.dtype(dtype).itemsize
        for place, length in zip(lists, self.lengths, strict=True):
            at(place, length, dtype)[:] = 0
        for task, place, values in self._uses(plan, dtype, lists):
            for k, one in enumerate(values[: task[3]] if task[2] == _FIRSTN else values):
                position = k if task[2] == _FIRSTN else 0
                where = grads[task[1]] + size * (place + position * task[8])
                grad = at(where, task[5], dtype) * dtype(scale)
                one += grad / dtype(len(values)) if task[2] == _MEAN else grad


def _features(features: Sequence[int]) -> Iterator[tuple[int, list[int], list[int], int, int]]:
    """Number, ids, row splits, first word and first row of each feature."""
    word = 0
    for q in range(len(features) // 5):
        ids_at, splits_at, rows, count, entry = features[5 * q : 5 * q + 5]
        splits = at(splits_at, rows + 1, np.int64).tolist()
        yield q, at(ids_at, count, np.int64).tolist(), splits, word, entry
        word += count


def number_fids(
    features: Sequence[int],
    shards: int,
    unique: bool,
    words_at: int,
    offsets_at: int,
    counts_at: int,
) -> int:
    """Shard and number of each id; the first feature with wrong rows, or -1."""
    for q, ids, splits, _, _ in _features(features):
        if splits[0] != 0 or splits[-1] != len(ids) or sorted(splits) != splits:
            return q
    for q, ids, splits, first, entry in _features(features):
        offsets = at(offsets_at + 4 * entry, len(splits) - 1, np.int32)
        offsets[:] = [first + one for one in splits[:-1]]
        counts = at(counts_at + 8 * shards * q, shards, np.int64)
        counts[:] = 0
        words = at(words_at + 8 * first, len(ids), np.int64)
        seen: dict[int, int] = {}
        for i, key in enumerate(ids):
            shard = key % 2**64 % shards
            number = seen.get(key) if unique else None
            if number is None:
                number = seen[key] = int(counts[shard])
                counts[shard] += 1
            words[i] = shard << 32 | number
    return -1


def place_fids(
    features: Sequence[int],
    tables: Sequence[int],
    widths: Sequence[int],
    shards: int,
    rows_at: int,
    values_at: int,
    words_at: int,
    fids_at: int,
) -> None:
    """Lists the ids, and turns shard and number into list and first value."""
    for q, ids, _, first, _ in _features(features):
        rows = at(rows_at + 8 * shards * q, shards, np.int64).tolist()
        values = at(values_at + 8 * shards * q, shards, np.int64).tolist()
        words = at(words_at + 8 * first, len(ids), np.int64)
        for i, key in enumerate(ids):
            shard, number = int(words[i]) >> 32, int(words[i]) & _LOW
            at(fids_at + 8 * (rows[shard] + number), 1, np.int64)[0] = key
            words[i] = (tables[q] * shards + shard) << 32 | values[shard] + number * widths[q]


Ints = NDArray[np.int64]
_MASK = 2**64 - 1


def _mix64(key: int) -> int:
    key = (key ^ key >> 33) * 0xFF51AFD7ED558CCD & _MASK
    key = (key ^ key >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return key ^ key >> 33


def _place_key(
    key: int, code: int, owners: int, block: int, bounds: Sequence[int]
) -> tuple[int, int]:
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
    places = [_place_key(key, code, owners, block, bounds) for key in keys]
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
        shard, name = _place_key(key, codes[f], count, block, bounds[f])
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


def _split_windows(
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
    entries = _split_windows(keys_at, row_splits_at, dims, offsets_at, n, inner_splits_at, known)
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
    entries = _split_windows(keys_at, row_splits_at, dims, offsets_at, n, inner_splits_at, known)
    for start, dim, places in entries:
        out = at(out_at + start * dtype.itemsize, dim, dtype)
        out[:] = 0
        for place in places:
            out += at(grad_at + place * dtype.itemsize, dim, dtype)
