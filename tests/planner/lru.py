"""A cache that drops what was used longest ago, key by key: what hit rates are checked against."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class ZipfSteps:
    """Ids of steps, drawn by Zipf's law; the numbers of keys say nothing of how frequent they are.

    `steps` are the distinct ids of each, `ids` plain ids in the order of their use.
    """

    def __init__(self, keys: int, exponent: float, step_ids: int, seed: int = 0) -> None:
        self.keys, self._step_ids = keys, step_ids
        self._random = np.random.default_rng(seed)
        weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
        self._up_to = np.cumsum(weights / weights.sum())
        self._names = self._random.permutation(keys)

    def ids(self, count: int) -> Ints:
        ranks = np.searchsorted(self._up_to, self._random.random(count), side="right")
        return self._names[np.minimum(ranks, self.keys - 1)]

    def steps(self) -> Iterator[Ints]:
        there = np.zeros(self.keys, bool)
        while True:
            drawn = self.ids(self._step_ids)
            there[drawn] = True
            yield np.flatnonzero(there)
            there[drawn] = False


class LruCache:
    """Exactly the `rows` keys used last, in a queue of uses whose old entries are skipped."""

    def __init__(self, keys: int, rows: int) -> None:
        self._rows, self._size, self._uses = rows, 0, 0
        self._used = np.full(keys, -1)  # when each key was used last
        self._oldest = 0  # uses before this one are not in the cache
        self._queue = np.empty(2**24, np.int64)

    @property
    def full(self) -> bool:
        return self._size == self._rows

    def step(self, keys: Ints) -> int:
        """Uses distinct keys at once; how many of them were in the cache before."""
        hits = int((self._used[keys] >= self._oldest).sum())
        times = np.arange(self._uses, self._uses + len(keys))
        self._used[keys] = times
        self._queue[times] = keys
        self._uses += len(keys)
        self._size += len(keys) - hits
        while self._size > self._rows:
            self._drop(self._size - self._rows)
        return hits

    def _drop(self, count: int) -> None:
        times = np.arange(self._oldest, min(self._oldest + 2 * count + 64, self._uses))
        latest = np.flatnonzero(self._used[self._queue[times]] == times)[:count]
        self._size -= len(latest)
        self._oldest = int(times[latest[-1]] + 1 if len(latest) == count else times[-1] + 1)


def hit_rate(source: ZipfSteps, rows: int, steps: int) -> float:
    """Hits per distinct key over so many steps, once the cache is full and has turned over."""
    cache, found, warm, asked = LruCache(source.keys, rows), 0, 0, 0
    for number, keys in enumerate(source.steps()):
        hits = cache.step(keys)
        if not cache.full or number < 2 * warm:
            warm += not cache.full
            continue
        found, asked, steps = found + hits, asked + len(keys), steps - 1
        if not steps:
            return found / asked
    raise AssertionError("steps never end")
