"""Reads of several tables in one call give what each table gives, in the core and in its twin."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow import native
from hedgerow.tables.host import lookup_several, move_in_several, read_several
from hedgerow.tables.transfer import MovingRows
from tests.twins import native_core

DIM, STATES = 3, 3


def tables(count: int, rows: int) -> list[hr.HostTable]:
    made = []
    for k in range(count):
        segments = (hr.Segment(DIM, hr.Uniform(), hr.Adagrad(lr=0.1)),)
        table = hr.HostTable(hr.TableConfig(f"t{k}", segments, seed=k))
        ids = torch.arange(rows) * 3 + k
        table.apply_gradients(ids, torch.full((rows, DIM), 0.5), ts=7 + k)
        made.append(table)
    return made


def asked(sizes: list[int], seed: int = 0) -> tuple[torch.Tensor, list[int]]:
    ids = np.random.default_rng(seed).integers(0, 3000, sum(sizes))
    return torch.from_numpy(ids), [0, *accumulate(sizes)]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("sizes", [[0, 0], [1, 0, 2], [3000, 0, 700, 513], [9000]])
def test_reads_are_those_of_each_table(sizes: list[int], threads: int) -> None:
    before = native.threads()
    native.set_threads(threads)
    try:
        made, (ids, splits) = tables(len(sizes), 900), asked(sizes)
        n = len(ids)
        room = MovingRows(
            *(ids, torch.ones(n, dtype=torch.bool), torch.full((n, DIM), 9.0)),
            *(torch.full((n, STATES), 9.0), torch.full((n,), 9)),
        )
        counts = read_several(
            made,
            splits,
            ids_at=ids.data_ptr(),
            found_at=room.found.data_ptr(),
            rows_at=room.rows.data_ptr(),
            states_at=room.states.data_ptr(),
            times_at=room.ts.data_ptr(),
        )
        rows = torch.full((n, DIM), 9.0)
        found = lookup_several(made, ids, splits, "training", None, rows)
    finally:
        native.set_threads(before)
    assert torch.equal(found, room.found)
    assert counts == [int(found[start:stop].sum()) for start, stop in pairwise(splits)]
    for table, (start, stop) in zip(made, pairwise(splits), strict=True):
        part = ids[start:stop]
        own = table.read_out(part)
        for name in ("found", "rows", "states", "ts"):
            assert torch.equal(getattr(room, name)[start:stop], getattr(own, name)), name
        assert torch.equal(rows[start:stop], table.lookup(part, missing="training").rows_of())
        assert torch.equal(found[start:stop], table.contains(part))


@pytest.mark.parametrize("missing", ["zeros", "initializer"])
def test_the_twin_reads_as_the_core(missing: str) -> None:
    ids, splits = asked([30, 50], seed=3)
    told: list[list[np.ndarray]] = []
    for core in (native, native_core):
        several: list[Any] = [_of_one_core(core, k) for k in range(2)]
        parts = [
            np.ones(len(ids), np.bool_),
            np.full((len(ids), DIM), 9, np.float32),
            np.full((len(ids), STATES), 9, np.float32),
            np.full(len(ids), 9, np.int64),
            np.full((len(ids), DIM), 9, np.float32),
            np.ones(len(ids), np.bool_),
        ]
        at = [part.ctypes.data for part in parts]
        counts = core.read_several(several, splits, ids.data_ptr(), *at[:4])
        parts.append(np.array(counts))
        core.lookup_several(several, splits, [missing] * 2, 0, ids.data_ptr(), *at[4:])
        told.append(parts)
    for one, other in zip(*told, strict=True):
        assert np.array_equal(one, other)
    assert 0 < told[0][0].sum() < len(ids)


def _of_one_core(core: Any, k: int) -> Any:
    codec = core.Codec("fp32")
    state = [0.5] * DIM
    segment = core.Segment(DIM, "constant", 0.25, 0.0, "adagrad", [0.0, 0.1], state, codec, False)
    table = core.Table([segment], False, False, k, 1)
    ids = np.arange(700, dtype=np.int64) * 4 + k
    rows = np.arange(700 * DIM, dtype=np.float32)
    table.assign(ids.ctypes.data, 700, rows.ctypes.data, 5 + k)
    return table


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("sizes", [[0, 0], [1, 0, 2], [3000, 0, 1025, 700]])
def test_rows_come_to_each_table(sizes: list[int], threads: int) -> None:
    before = native.threads()
    native.set_threads(threads)
    try:
        made, other = (tables(len(sizes), 900) for _ in range(2))
        ends = list(accumulate(n + 3 for n in sizes))  # behind the rows of each there is room
        starts = [end - n - 3 for n, end in zip(sizes, ends, strict=True)]
        ends = [start + n for n, start in zip(sizes, starts, strict=True)]
        n = sum(sizes) + 3 * len(sizes)
        ids = torch.from_numpy(np.random.default_rng(4).permutation(9000)[:n])
        numbers = torch.arange(n)
        rows, states = (
            (numbers[:, None] * width + torch.arange(width)).float() for width in (DIM, STATES)
        )
        moving = MovingRows(ids, torch.ones(n, dtype=torch.bool), rows, states, numbers + 50)
        move_in_several(made, starts, ends, moving)
    finally:
        native.set_threads(before)
    for table, plain, start, end in zip(made, other, starts, ends, strict=True):
        chosen = (numbers >= start) & (numbers < end)
        plain.move_in(moving.where(chosen))
        assert table.size() == plain.size()
        one, two = table.read_out(ids), plain.read_out(ids)
        for name in ("found", "rows", "states", "ts"):
            assert torch.equal(getattr(one, name), getattr(two, name)), name


def test_rows_come_to_the_twin_as_to_the_core() -> None:
    ids, numbers = torch.arange(40) * 2, torch.arange(40)
    rows, states = (torch.rand(40, width) for width in (DIM, STATES))
    parts = [x.data_ptr() for x in (ids, rows, states, numbers)]
    told: list[list[np.ndarray]] = []
    for core in (native, native_core):
        several: list[Any] = [_of_one_core(core, k) for k in range(2)]
        core.move_in_several(several, [0, 30], [20, 40], *parts)
        found = np.zeros(40, np.bool_), np.zeros((40, DIM), np.float32)
        rest = np.zeros((40, STATES), np.float32), np.zeros(40, np.int64)
        at = [part.ctypes.data for part in (*found, *rest)]
        core.read_several(several, [0, 20, 40], ids.data_ptr(), *at)
        told.append([*found, *rest])
    for one, other in zip(*told, strict=True):
        assert np.array_equal(one, other)


def test_a_rule_that_is_none_is_refused() -> None:
    made, (ids, splits) = tables(1, 3), asked([2])
    with pytest.raises(ValueError, match="missing is 'maybe'"):
        native.lookup_several(
            [made[0].core.native_table], splits, ["maybe"], 0, ids.data_ptr(), 0, 0
        )
