"""The loops of the parameter-server path agree with their plain twins on random input."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from hedgerow import native
from tests.support import threads
from tests.twins import native_core

CORES = (native, native_core)
EXTREME = np.array([0, -1, 1, -(2**63), 2**63 - 1])


def _parts(sizes: np.ndarray, width: int, dtype: type = np.uint8) -> list[np.ndarray]:
    return [np.full((size, width), 7, dtype) for size in sizes]


def _at(arrays: list[np.ndarray]) -> list[int]:
    return [array.ctypes.data for array in arrays]


def _plan(
    core: ModuleType, indices: np.ndarray, splits: int, blocks: int
) -> tuple[np.ndarray, np.ndarray, int]:
    starts, sizes = np.full((blocks, splits), -5), np.full(splits, -5)
    bad = core.plan_split(
        indices.ctypes.data, len(indices), splits, blocks, starts.ctypes.data, sizes.ctypes.data
    )
    return starts, sizes, bad


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("width", [0, 1, 3, 4, 7, 8, 16, 20, 32, 64, 100, 128])
@pytest.mark.parametrize(
    ("n", "splits", "blocks"), [(0, 2, 1), (1, 1, 1), (300, 7, 5), (50, 99, 3)]
)
def test_splits_agree_and_join_again(
    n: int, splits: int, blocks: int, width: int, count: int
) -> None:
    random = np.random.default_rng(n + width)
    indices = random.integers(0, splits, n)
    rows = random.integers(0, 256, (n, width), np.uint8)
    found = []
    with threads(count):
        for core in CORES:
            starts, sizes, bad = _plan(core, indices, splits, blocks)
            assert bad == -1
            parts = _parts(sizes, width)
            shared = (indices.ctypes.data, n, splits, blocks, starts.ctypes.data)
            core.split_rows(*shared, rows.ctypes.data, width, _at(parts))
            again = np.full_like(rows, 9)
            core.join_rows(*shared, _at(parts), width, again.ctypes.data)
            np.testing.assert_array_equal(again, rows)
            found.append((starts, sizes, *parts))
    for ours, twin in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, twin)


@pytest.mark.parametrize("place", [0, 1, 148, 149, 150, 299])
@pytest.mark.parametrize("value", [-1, 3, -(2**63), 2**63 - 1])
def test_the_first_bad_index_is_told(place: int, value: int) -> None:
    indices = np.arange(300) % 3
    indices[place:] = value
    for core in CORES:
        assert _plan(core, indices, 3, 4)[2] == place


@pytest.mark.parametrize("blocks", [1, 2, 3, 40])
@pytest.mark.parametrize("rows", [1, 5, 60])
def test_ragged_splits_agree(rows: int, blocks: int) -> None:
    random = np.random.default_rng(rows)
    lengths = random.integers(0, 5, rows) * random.integers(0, 2, rows)
    borders = np.concatenate([[0], lengths.cumsum()])
    n, splits = int(borders[-1]), 4
    blocks = max(1, min(blocks, n))
    indices, values = random.integers(0, splits, n), random.integers(-(2**63), 2**63 - 1, n)
    found = []
    for core in CORES:
        starts, sizes, _ = _plan(core, indices, splits, blocks)
        parts, places = (_parts(sizes, 1, np.int64) for _ in range(2))
        cuts = np.full((splits, rows + 1), -5)
        core.split_ragged(
            *(indices.ctypes.data, n, splits, blocks, starts.ctypes.data),
            *(values.ctypes.data, borders.ctypes.data, rows),
            *(_at(parts), _at(places), cuts.ctypes.data),
        )
        found.append((*parts, *places, cuts))
    for ours, twin in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, twin)


def _keys(random: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    lengths = random.integers(0, 30, rows) * random.integers(0, 2, rows)
    borders = np.concatenate([[0], lengths.cumsum()])
    keys = random.choice(np.concatenate([EXTREME, random.integers(-9, 9, 20)]), borders[-1])
    return keys, borders, random.choice([0, 1, 3, 4, 8, 16, 17, 32], rows).tolist()


def _unique(
    core: ModuleType, keys: np.ndarray, borders: np.ndarray, dims: list[int]
) -> tuple[np.ndarray, ...]:
    distinct, splits = np.full_like(keys, 7), np.full_like(borders, 7)
    offsets, inner = np.full_like(keys, 7), np.full(len(keys) + 1, 7)
    n = core.unique_with_offsets(
        *(keys.ctypes.data, borders.ctypes.data, dims, distinct.ctypes.data),
        *(splits.ctypes.data, offsets.ctypes.data, inner.ctypes.data),
    )
    return distinct[:n], splits, offsets, inner[: n + 1]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_distinct_keys_agree(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    keys, borders, dims = _keys(random, seed)
    with threads(count):
        found = [_unique(core, keys, borders, dims) for core in CORES]
    for ours, twin in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, twin)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(20))
def test_fills_and_sums_agree(seed: int, dtype: type) -> None:
    random = np.random.default_rng(seed)
    keys, borders, dims = _keys(random, 1 + seed)
    distinct, splits, offsets, inner = _unique(native_core, keys, borders, dims)
    floats = int((np.diff(borders) * dims).sum())
    chosen = [random.permutation(np.arange(a, b))[: (b - a + 1) // 2] for a, b in _pairs(splits)]
    part, cuts = np.concatenate(chosen), np.cumsum([0, *map(len, chosen)])
    shared = (
        *(part.ctypes.data, cuts.ctypes.data, dims),
        *(offsets.ctypes.data, len(offsets), inner.ctypes.data, len(distinct)),
    )
    size = int((np.diff(cuts) * dims).sum())
    values, grad = random.random(size).astype(dtype), random.random(floats).astype(dtype)
    wide, item = dtype == np.float64, np.dtype(dtype).itemsize
    found = []
    for core in CORES:
        assert tuple(core.check_part(*shared, floats)) == (0, 0)
        buffer, sums = np.full(floats, 3, dtype), np.full(size, 3, dtype)
        core.fill_windows(*shared, values.ctypes.data, item, buffer.ctypes.data, bool(seed % 2))
        core.sum_windows(*shared, grad.ctypes.data, wide, sums.ctypes.data)
        found.append((buffer, sums))
    for ours, twin in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, twin)


def _pairs(splits: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(splits[:-1].tolist(), splits[1:].tolist(), strict=True))


@pytest.mark.parametrize(
    ("keys", "offsets", "inner", "fault"),
    [
        ([0, 1, 2], [0, 2, 4], [0, 1, 2, 3], (0, 0)),
        ([0, 3, -1], [0, 2, 4], [0, 1, 2, 3], (1, 1)),
        ([0, 1, -1], [0, 2, 4], [0, 1, 2, 3], (1, 2)),
        ([0, 1, 2], [0, 2, 4], [0, 2, 1, 3], (2, 1)),
        ([0, 1, 2], [0, 2, 4], [0, 1, 2, 4], (2, 2)),
        ([0, 1, 2], [0, 2, 4], [-1, 1, 2, 3], (2, 0)),
        ([0, 1, 2], [0, -1, 4], [0, 1, 2, 3], (3, 1)),
        ([0, 1, 2], [0, 2, 5], [0, 1, 2, 3], (3, 2)),
        ([0, 1, 2], [0, 2**63 - 1, 5], [0, 1, 2, 3], (3, 1)),
        ([0, 0, 0], [9, 9, 9], [0, 0, 2, 3], (0, 0)),
    ],
)
def test_faults_of_a_part_agree(
    keys: list[int], offsets: list[int], inner: list[int], fault: tuple[int, int]
) -> None:
    arrays = [np.array(x) for x in (keys, [0, 1, 3], offsets, inner)]
    k, cuts, o, i = (a.ctypes.data for a in arrays)
    for core in CORES:
        assert tuple(core.check_part(k, cuts, [2, 2], o, 3, i, 3, 6)) == fault


def test_windows_wider_than_the_buffer_are_a_fault() -> None:
    arrays = [np.array(x) for x in ([0], [0, 1], [0], [0, 1])]
    k, cuts, o, i = (a.ctypes.data for a in arrays)
    for core in CORES:
        assert tuple(core.check_part(k, cuts, [7], o, 1, i, 1, 6)) == (3, 0)


def test_marks_agree() -> None:
    for core in CORES:
        seen = np.zeros(6, np.uint8)
        told = []
        for keys in ([0, 2], [], [4, 5], [1, 1], [3, 2]):
            array = np.array(keys, np.int64)
            told.append(core.mark_keys(array.ctypes.data, len(keys), seen.ctypes.data))
        assert told == [False, False, False, True, True]
        assert seen.all()
