"""The kernels of ops give what their twins give."""

from __future__ import annotations

import pytest
import torch

from hedgerow.kernels import pool, route, segments
from hedgerow.kernels.layout import KEYS, FirstValues, RowSegment
from hedgerow.kernels.placement import place  # noqa: F401  (Triton is there)
from hedgerow.routing.bucketize import _rules
from hedgerow.routing.router import Router
from tests.twins import kernels_ops

from ..support import EXTREME_IDS
from .cases import UNIFORM, filled, moved, same_bits, some_ids, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [1, 5, 300])
def test_windows_are_copied_and_added(device: torch.device, dim: int, dtype: torch.dtype) -> None:
    flat = values(1, 900, dim)[0].to(dtype)
    offsets = torch.tensor([3, 0, 3, 900 - dim, 77], dtype=torch.int32)
    ours = segments.copy_windows(offsets.to(device), flat.to(device), dim)
    same_bits(ours, kernels_ops.copy_windows(offsets, flat, dim))
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    rows, scale = (torch.arange(5.0 * dim).view(5, dim) % 64).to(dtype), torch.tensor(0.5)
    sums, model = torch.zeros(900, dtype=kind, device=device), torch.zeros(900, dtype=kind)
    factor = scale.to(device, kind)
    segments.add_windows(offsets.to(device), rows.to(device), factor, sums)
    kernels_ops.add_windows(offsets, rows, scale.to(kind), model)
    same_bits(sums, model)  # sums of so few small whole numbers are exact in any order


def test_a_window_that_lies_outside_is_neither_read_nor_written(device: torch.device) -> None:
    flat = torch.arange(8.0, device=device)
    offsets = torch.tensor([-1, 7, 2**40, 6], device=device)
    assert segments.copy_windows(offsets, flat, 2)[3].tolist() == [6.0, 7.0]
    sums, one = torch.zeros(8, device=device), torch.ones((), device=device)
    segments.add_windows(offsets, torch.ones(4, 2, device=device), one, sums)
    assert sums.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_segments_are_added_in_their_order(device: torch.device, dtype: torch.dtype) -> None:
    lengths = torch.tensor([3, 0, 1, 9, 0, 2] * 12)
    splits = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    vectors = values(int(lengths.sum()), 10, 4).clamp(-50, 50).to(dtype)
    for start, dim in ((0, None), (3, 4)):
        ours = segments.sum_segments(splits.to(device), vectors.to(device), start, dim)
        same_bits(ours, kernels_ops.sum_segments(splits, vectors, start, dim))


@pytest.mark.parametrize("pooling", pool.POOLINGS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("born", [False, True])
def test_bags_are_pooled_from_rows(
    device: torch.device, pooling: str, weighted: bool, born: bool
) -> None:
    held = some_ids(60, 1)
    table = filled(8, 12, held, states=3)
    ids = torch.cat([held[:40], some_ids(20, 9)])[torch.randperm(60)]
    slots = torch.tensor([_slot(table.line(KEYS), id_) for id_ in ids.tolist()])
    lengths = torch.tensor([4, 0, 1, 20, 30, 0, 5])
    splits = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    weights = torch.rand(60) if weighted else None
    nothing, constant = torch.zeros(12, dtype=torch.float64), FirstValues("constant", 0.25, 0.0, 1)
    parts = [
        RowSegment(0, 4, 12, constant, "sgd", nothing),
        RowSegment(4, 8, 12, UNIFORM, "sgd", nothing),
    ]
    there = [x.to(device) for x in (ids, slots, splits)]
    given = (pooling, None if weights is None else weights.to(device), parts if born else ())
    ours = pool.pool(moved(table, device), *there, *given)
    given = (pooling, weights, parts if born else ())
    same_bits(ours, kernels_ops.pool(table, ids, slots, splits, *given))


def _slot(keys: torch.Tensor, id_: int) -> int:
    found = (keys[:-2] == id_).nonzero()
    return int(found[0]) if len(found) else -1


def test_owners_and_lengths_of_every_rule(device: torch.device) -> None:
    routers = [
        Router("roundrobin", 6),
        Router("hash_roundrobin", 6, rank0_empty=True),
        Router("continuous", 6, rows=100),
        Router("continuous", 6, bounds=[0, 10, 10, 50, 2**63, 2**63 + 5, 2**64 - 9]),
    ]
    ids = torch.cat([torch.tensor([*EXTREME_IDS, 9, 10, 49, 99, 102, 103]), some_ids(20, 3)])
    keys = ids.repeat(len(routers))
    rules, bounds = _rules(routers)
    lengths = torch.tensor([0, len(ids), 3, len(ids) - 3] * 2)
    splits = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    given = (keys, splits, torch.tensor([0, 2, 4, 6, 8]), rules, bounds)
    found = route.route(*(x.to(device) for x in given), 6, 7)
    ours = (found.owners, found.local, found.positions, found.lengths)
    for one, wanted in zip(ours, kernels_ops.route(*given, 6, 7), strict=True):
        assert torch.equal(one.cpu().long(), wanted)
    order, weights = torch.randperm(len(keys)), torch.rand(len(keys))
    moved = (order, keys, found.positions.cpu(), weights)
    for one, wanted in zip(
        route.move(*(x.to(device) for x in moved)), kernels_ops.move(*moved), strict=True
    ):
        assert one is not None
        assert wanted is not None
        assert torch.equal(one.cpu(), wanted)
