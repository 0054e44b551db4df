"""Plain numpy twins of the core's layouts: one value at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reference_values import at

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
