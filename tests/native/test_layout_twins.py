"""The core's layouts and its producer agree with their plain twins."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow import native
from hedgerow.monolith.layouts.inputs import indices
from tests.ops.layout_cases import batch_of, grads_like
from tests.support import isa
from tests.twins import native_core

SEEDS = st.integers(0, 2**31)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(native.isas()), st.booleans())
def test_layouts_agree(seed: int, name: str, is_double: bool) -> None:
    batch = batch_of(seed, shards=random.Random(seed).choice([1, 3]))
    dtype = torch.float64 if is_double else torch.float32
    lists = [one.detach().to(dtype) for one in batch.lists]
    found = batch.found
    index = (found.fid_offset, found.feature_offset, found.nfl_offset, [batch.rows])
    plan = indices(
        [one.shape[0] for one in lists], *index, None, None, batch.config.text, batch.shards
    )
    tasks = [number for task in plan.plan.tasks for number in task.numbers()]
    requests = [number for one in plan.requests for number in vars(one).values()]
    addresses = [one.data_ptr() for one in (found.nfl_offset, found.feature_offset)]
    last = found.fid_offset.data_ptr()
    results = []
    for core in (native, native_core):
        tables = core.LayoutPlan(len(batch.config.names), tasks)
        work = core.LayoutBatch(plan.lists, requests, plan.lengths, *addresses, False, last)
        assert (tables.features(), tables.outputs()) == (
            len(batch.config.names),
            len(plan.plan.sizes),
        )
        assert work.check(tables) == (0, 0, 0, 0, 0)
        outputs = [torch.full(shape, 7.0, dtype=dtype) for shape in plan.plan.shapes(batch.rows)]
        grads = grads_like(outputs)
        sums = [torch.full_like(one, 7.0) for one in lists]
        with isa(name):
            work.forward(
                tables, is_double, plan.addresses(lists), [one.data_ptr() for one in outputs]
            )
            fed = [one.data_ptr() for one in grads]
            work.backward(tables, is_double, fed, 0.5, plan.addresses(sums))
        results.append((outputs, sums))
    torch.testing.assert_close(results[0], results[1])


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_faults_agree(seed: int) -> None:
    draw = random.Random(seed)
    batch = batch_of(seed, rows=draw.choice([1, 4]), shards=2)
    found = batch.found
    index = [found.fid_offset.clone(), found.feature_offset.clone(), found.nfl_offset.clone()]
    sizes = [one.shape[0] for one in batch.lists]
    plan = indices(sizes, *index, [batch.rows], None, None, batch.config.text, 2)
    broken = draw.choice([one for one in index if one.numel()])
    broken[draw.randrange(broken.numel())] += draw.choice([-1, 1, 2, 5])
    tasks = [number for task in plan.plan.tasks for number in task.numbers()]
    requests = [number for one in plan.requests for number in vars(one).values()]
    fid, offsets, nfl = (one.data_ptr() for one in index)
    faults = []
    for core in (native, native_core):
        work = core.LayoutBatch(plan.lists, requests, plan.lengths, nfl, offsets, False, fid)
        faults.append(work.check(core.LayoutPlan(len(batch.config.names), tasks)))
    assert faults[0] == faults[1]


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.booleans(), st.sampled_from([1, 2, 3, 8, 300]))
def test_the_producer_agrees(seed: int, unique: bool, shards: int) -> None:
    draw = random.Random(seed)
    features: list[int] = []
    kept, entry, total = [], 0, 0
    for _ in range(draw.randint(0, 4)):
        lengths = [draw.randint(0, 4) for _ in range(draw.randint(0, 4))]
        splits = np.cumsum([0, *lengths]).astype(np.int64)
        choices = [-1, 0, 1, 5, 2**63 - 1, -(2**63), 300]
        ids = np.array([draw.choice(choices) for _ in range(sum(lengths))], np.int64)
        if draw.random() < 0.1:
            splits[-1] += 1
        kept += [ids, splits]
        features += [ids.ctypes.data, splits.ctypes.data, len(lengths), len(ids), entry]
        entry, total = entry + len(lengths), total + len(ids)
    count = len(features) // 5
    starts = np.arange(count * shards, dtype=np.int64).reshape(count, shards) * 64
    results = []
    for core in (native, native_core):
        words, fids = np.zeros(total, np.int64), np.zeros(count * shards * 64 + 1, np.int64)
        offsets, counts = np.zeros(entry, np.int32), np.zeros((count, shards), np.int64)
        places = (words.ctypes.data, offsets.ctypes.data, counts.ctypes.data)
        wrong = core.number_fids(features, shards, unique, *places)
        if wrong < 0:
            numbers = (list(range(count)), [3] * count)
            where = (starts.ctypes.data, starts.ctypes.data, words.ctypes.data, fids.ctypes.data)
            core.place_fids(features, *numbers, shards, *where)
        results.append((wrong, words, offsets, counts, fids))
    assert results[0][0] == results[1][0]
    for one, other in zip(results[0][1:], results[1][1:], strict=True):
        assert np.array_equal(one, other)
