"""Rows by id, windows and reordering: the core agrees with its plain twins on random input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow import native
from tests.twins import native_core

SMALL = st.integers(-3, 12)
IDS = st.one_of(SMALL, st.sampled_from([-(2**63), 2**63 - 1, -1]))
CORES = (native, native_core)


def addresses(arrays: list[np.ndarray]) -> list[int]:
    return [array.ctypes.data for array in arrays]


def lengths(arrays: list[np.ndarray]) -> list[int]:
    return [len(array) for array in arrays]


def int64(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@settings(deadline=None)
@given(
    ids=st.lists(st.lists(IDS, max_size=9), min_size=1, max_size=5),
    queries=st.lists(IDS, max_size=30),
    many=st.booleans(),
)
def test_finding_rows(ids: list[list[int]], queries: list[int], many: bool) -> None:
    lists, asked = [int64(one) for one in ids], int64(queries)
    found = []
    for core in CORES:
        out = np.full(len(queries), -7)
        missing = core.find_rows(
            addresses(lists), lengths(lists), asked.ctypes.data, len(queries), many, out.ctypes.data
        )
        found.append((missing, out.tolist() if missing < 0 else None))
    assert found[0] == found[1]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    dim=st.sampled_from([0, 1, 3, 8, 16]),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 99),
)
def test_copying_and_adding_rows(sizes: list[int], dim: int, dtype: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    total = sum(sizes)
    numbers = random.integers(0, total, 40) if total else int64([])
    rows = [random.random((size, dim)).astype(dtype) for size in sizes]
    n = len(numbers)
    outs, sums = [], []
    for core in CORES:
        out = np.full((n + 1, dim), 7, dtype)
        row_bytes = dim * out.itemsize
        args = (addresses(rows), sizes, row_bytes, numbers.ctypes.data, n, True, out.ctypes.data)
        core.copy_rows(*args)
        outs.append(out)
        summed = [np.full((size, dim), 7, dtype) for size in sizes]
        at = (numbers.ctypes.data, n, True, out.ctypes.data)
        core.add_rows(addresses(summed), sizes, dim, out.itemsize, *at)
        sums.append(np.concatenate(summed))
    assert outs[0].tobytes() == outs[1].tobytes()
    assert sums[0].tobytes() == sums[1].tobytes()  # the order of additions is the same too


@settings(deadline=None)
@given(
    tables=st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.integers(-1, 9), max_size=6)), max_size=4
    ),
    size=st.integers(0, 12),
    offset=st.sampled_from([np.int32, np.int64]),
    dtype=st.sampled_from([np.float32, np.float64]),
    inside=st.booleans(),
)
def test_windows(
    tables: list[tuple[int, list[int]]], size: int, offset: Any, dtype: Any, inside: bool
) -> None:
    dims = [dim for dim, _ in tables]
    offsets = [
        np.array([o for o in one if not inside or 0 <= o <= size - dim], offset)
        for dim, one in tables
    ]
    values = np.random.default_rng(size).random(size).astype(dtype)
    widths = (np.dtype(offset).itemsize, np.dtype(dtype).itemsize)
    where = (addresses(offsets), lengths(offsets), dims, *widths)
    copies, sums = [], []
    for core in CORES:
        rows = [np.zeros((len(o), d), dtype) for o, d in zip(offsets, dims, strict=True)]
        outside = core.copy_windows(*where, values.ctypes.data, size, addresses(rows))
        copies.append((outside, [row.tobytes() for row in rows]))
        grads = [np.full((len(o), d), 0.3, dtype) for o, d in zip(offsets, dims, strict=True)]
        total = np.full(size, 7, dtype)
        outside = core.add_windows(*where, addresses(grads), 0.7, total.ctypes.data, size)
        sums.append((outside, total.tobytes()))
    assert copies[0] == copies[1]
    assert sums[0] == sums[1]


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(SMALL, st.integers(0, 4)), max_size=40),
    kind=st.integers(0, 2),
    odd=st.lists(st.sampled_from([np.nan, -0.0, 0.0, np.inf]), max_size=6),
)
def test_reordering(rows: list[tuple[int, int]], kind: int, odd: list[float]) -> None:
    dtype = (np.int64, np.float32, np.float64)[kind]
    keys = [key for key, _ in rows] + (odd if kind else [])
    width = 2 if kind else 1
    table = np.arange(len(keys) * width).reshape(len(keys), width).astype(dtype)
    table[:, 0] = keys
    shards = np.array([shard for _, shard in rows] + [0] * (len(keys) - len(rows)), np.int32)
    found = []
    for core in CORES:
        out, sizes = np.zeros_like(table), np.full(5, 7, np.int32)
        stride = width * table.itemsize
        at = (table.ctypes.data, kind, stride, table.ctypes.data, stride, len(keys))
        kept = core.reorder(*at, shards.ctypes.data, 5, out.ctypes.data, sizes.ctypes.data)
        found.append((kept, sizes.tolist(), out[:kept].tobytes()))
    assert found[0] == found[1]


@settings(deadline=None)
@given(
    slots=st.lists(st.lists(IDS, max_size=20), min_size=1, max_size=5),
    shards=st.integers(1, 20),
    rank0_empty=st.booleans(),
    seed=st.integers(0, 9),
)
def test_fused_reordering(
    slots: list[list[int]], shards: int, rank0_empty: bool, seed: int
) -> None:
    rank0_empty = rank0_empty and shards > 1
    inputs = [int64(ids) for ids in slots]
    dims = np.random.default_rng(seed).integers(0, 9, len(slots)).tolist()
    found = []
    for core in CORES:
        out = np.zeros(sum(lengths(inputs)), np.int64)
        others = [
            np.zeros(size, np.int32) for size in (shards, shards * len(slots), sum(lengths(inputs)))
        ]
        args = (addresses(inputs), lengths(inputs), dims, shards, rank0_empty)
        ids, values = core.fused_reorder(*args, out.ctypes.data, *addresses(others))
        found.append((ids, values, out[:ids].tolist(), *(other.tolist() for other in others)))
    assert found[0] == found[1]


@pytest.mark.parametrize("dim", [2**30, 2**62, 2**63 - 1])
def test_both_tell_of_too_many_values_and_place_nothing(dim: int) -> None:
    ids = int64([1, 2, 1])
    for core in CORES:
        out, sizes = np.full(3, 7), np.zeros((3, 3), np.int32)
        args = ([ids.ctypes.data], [3], [dim], 3, False, out.ctypes.data)
        made = core.fused_reorder(*args, *(row.ctypes.data for row in sizes))
        assert made == (2, min(2 * dim, 2**63))
        assert out.tolist() == [7, 7, 7]
