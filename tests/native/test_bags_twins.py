"""Bags of several features, read and learnt in one call: the core does what its twin does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hedgerow import native
from tests.twins import native_core

POOLINGS = [("sum", 0), ("mean", 0), ("sqrtn", 0), ("max", 0), ("first", 2), ("none", 0)]
DIMS = (3, 1)  # of the two tables


@dataclass
class Case:
    """One batch: features of two tables, their ids, and gradients with odd strides."""

    poolings: list[tuple[str, int]]
    tables: list[int]
    ids: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None
    samples: int
    grads: list[np.ndarray | None]

    @property
    def cells(self) -> tuple[int, int, int, list[int], int, int]:
        """As the core takes them; features stand in the reverse order of their cells."""
        places = list(range(len(self.poolings)))[::-1]
        weights = 0 if self.weights is None else self.weights.ctypes.data
        where = (self.ids.ctypes.data, len(self.ids), self.offsets.ctypes.data)
        return (*where, places, self.samples, weights)

    def size(self, f: int) -> int:
        """Ids of feature `f`."""
        cell = len(self.poolings) - 1 - f
        first, end = self.offsets[[cell * self.samples, (cell + 1) * self.samples]]
        return int(end - first)

    def shape(self, f: int) -> tuple[int, ...]:
        """Of an output."""
        kind, first = self.poolings[f]
        dim = DIMS[self.tables[f]]
        if kind == "none":
            return self.size(f), dim
        return (self.samples, first, dim) if kind == "first" else (self.samples, dim)


def case(seed: int) -> Case:
    random = np.random.default_rng(seed)
    unpooled = bool(random.random() < 0.2)
    count = int(random.integers(1, 6))
    kinds = [POOLINGS[5] if unpooled else POOLINGS[random.integers(5)] for _ in range(count)]
    samples = int(random.choice([0, 1, 3, 40]))
    longest = int(random.choice([1, 2, 9]))
    sizes = random.integers(0, longest + 1, count * samples)
    if random.random() < 0.3:
        sizes[:] = 1
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    ids = random.integers(0, 30, offsets[-1])
    weights = random.normal(size=len(ids)).astype(np.float32)
    weighs = not unpooled and bool(random.random() < 0.5)
    made = Case(
        kinds,
        sorted(int(random.integers(2)) for _ in range(count)),
        ids,
        offsets,
        weights if weighs else None,
        samples,
        [],
    )
    for f in range(count):
        shape = made.shape(f)
        wide = random.normal(size=(*shape[:-1], 2 * shape[-1] + 1)).astype(np.float32)
        forms = [wide[..., : shape[-1]], wide[..., 1::2], np.broadcast_to(wide[..., :1], shape)]
        made.grads.append(None if random.random() < 0.15 else forms[random.integers(3)])
    return made


def place(grad: np.ndarray | None) -> tuple[int, int, int, int]:
    if grad is None:
        return (0, 0, 0, 0)
    strides = [stride // 4 for stride in grad.strides]
    return grad.ctypes.data, strides[0], strides[1] if grad.ndim == 3 else 0, strides[-1]


def tables_of(core: Any) -> list[Any]:
    made = []
    for k, dim in enumerate(DIMS):
        state = [0.5] * dim
        segment = core.Segment(
            *(dim, "constant", 0.25, 0.0, "adagrad", [0.0, 0.1], state, core.Codec("fp32"), False)
        )
        table = core.Table([segment], False, False, k, 1)
        ids = np.arange(0, 30, 2 + k)
        rows = np.random.default_rng(k).integers(-3, 4, (len(ids), dim)).astype(np.float32)
        table.assign(ids.ctypes.data, len(ids), rows.ctypes.data, 5)
        made.append(table)
    return made


def everything(tables: list[Any]) -> list[np.ndarray]:
    told = []
    ids = np.arange(30)
    for table, dim in zip(tables, DIMS, strict=True):
        found, times = np.zeros(30, np.bool_), np.zeros(30, np.int64)
        rows, states = (np.zeros((30, dim), np.float32) for _ in range(2))
        addresses = [part.ctypes.data for part in (found, rows, states, times)]
        table.entries(ids.ctypes.data, 30, *addresses)
        told += [found, rows, states, times]
    return told


def of_core(
    core: Any, given: Case, training: bool, times_given: int = 1, clip: float = 0
) -> list[np.ndarray]:
    tables = tables_of(core)
    numbers = sorted(set(given.tables))
    features = [
        (tables[t], numbers.index(t), kind, first, t == 0)
        for t, (kind, first) in zip(given.tables, given.poolings, strict=True)
    ]
    bags = core.Bags(features)
    outs = [np.full(given.shape(f), 9, np.float32) for f in range(len(features))]
    found = bags.lookup(given.cells, training, 3, [out.ctypes.data for out in outs], True, True)
    told = list(outs)
    places = [x for grad in given.grads for x in place(grad)]
    for f, grad in enumerate(given.grads):
        if grad is not None:
            each = np.full((given.size(f), DIMS[given.tables[f]]), 9, np.float32)
            bags.spread(found, f, places[4 * f : 4 * f + 4], each.ctypes.data)
            told.append(each)
    rates, times = [[0.1]] * len(numbers), [77] * len(numbers)
    learned = [(bags, found, places)] * times_given
    told.append(np.array(core.learn_bags(learned, 3, rates, times, clip)))
    return told + everything(tables)


@pytest.mark.parametrize("seed", range(120))
def test_the_core_does_what_its_twin_does(seed: int) -> None:
    given, training, clip = case(seed), seed % 3 != 0, (0, 0, 0.7)[seed // 40]
    many = 1 + seed % 2
    ours, theirs = (of_core(core, given, training, many, clip) for core in (native, native_core))
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert np.array_equal(one, other), (given.poolings, one, other)


@pytest.mark.parametrize("seed", range(60))
def test_both_find_the_first_gradient_that_is_not_finite(seed: int) -> None:
    given, random = case(seed), np.random.default_rng(seed)
    given.grads = [None if grad is None else np.array(grad) for grad in given.grads]
    filled = [grad for grad in given.grads if grad is not None and grad.size]
    if filled:
        one = filled[random.integers(len(filled))]
        one.flat[random.integers(one.size)] = random.choice([np.nan, np.inf, -np.inf])
    told = []
    for core in (native, native_core):
        tables = tables_of(core)
        features = [
            (tables[t], t, kind, first, True)
            for t, (kind, first) in zip(given.tables, given.poolings, strict=True)
        ]
        rejects = [True] * len(features)
        places = [x for grad in given.grads for x in place(grad)]
        bags = core.Bags(features)
        outs = [np.zeros(given.shape(f), np.float32) for f in range(len(features))]
        found = bags.lookup(given.cells, True, 3, [out.ctypes.data for out in outs], True, True)
        told.append(bags.not_finite(found, places, rejects))
    assert told[0] == told[1]


def test_offsets_that_do_not_rise_are_refused() -> None:
    table = tables_of(native)[0]
    bags = native.Bags([(table, 0, "sum", 0, True)])
    ids, out = np.arange(4), np.zeros((2, 3), np.float32)
    for offsets in ([0, 3, 2], [0, 2, 5], [-1, 2, 4]):
        held = np.array(offsets)
        cells = (ids.ctypes.data, 4, held.ctypes.data, [0], 2, 0)
        with pytest.raises(ValueError, match="must rise from 0 to its 4 ids"):
            bags.lookup(cells, True, 0, [out.ctypes.data], True, True)
