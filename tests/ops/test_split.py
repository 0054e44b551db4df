"""Splits keep the input order, and their gradient is the way back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow import native
from hedgerow.core.ids import Ragged
from hedgerow.monolith.gather_by_ids import shard_of
from hedgerow.ops.split import (
    _join_plain,
    ragged_split_by_indices,
    ragged_split_by_indices_plain,
    split_by_indices,
    split_by_indices_plain,
)
from tests.support import EXTREME_IDS, threads

OPS = torch.ops.hedgerow
IDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EXTREME_IDS)
RAGGED = st.lists(st.lists(IDS, max_size=5), max_size=6)
SHARDS = st.integers(1, 300)
DTYPES = [torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16, torch.bool]


@settings(deadline=None)
@given(st.lists(IDS, max_size=60), SHARDS)
def test_ids_go_to_their_shards_in_order(ids: list[int], shards: int) -> None:
    keys = torch.tensor(ids, dtype=torch.int64)
    wanted = [[id for id in ids if id % 2**64 % shards == k] for k in range(shards)]
    for split in (split_by_indices, split_by_indices_plain):
        assert [part.tolist() for part in split(shard_of(keys, shards), keys, shards)] == wanted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tail", [(), (1,), (3,), (16,), (2, 5), (0,)])
@pytest.mark.parametrize("n", [0, 1, 70])
def test_rows_of_every_type_and_shape(n: int, tail: tuple[int, ...], dtype: torch.dtype) -> None:
    rows = torch.randint(0, 2, (n, *tail)).to(dtype) if tail != () else torch.arange(n).to(dtype)
    indices = torch.randint(0, 5, (n,))
    parts = split_by_indices(indices, rows, 6)
    for k, (ours, plain) in enumerate(
        zip(parts, split_by_indices_plain(indices, rows, 6), strict=True)
    ):
        assert ours.dtype == dtype
        assert torch.equal(ours, rows[indices == k])
        assert torch.equal(plain, ours)
    back = OPS.split_by_indices_backward(indices, parts)
    assert torch.equal(back, rows)
    assert torch.equal(_join_plain(indices, parts), rows)


@settings(deadline=None)
@given(RAGGED, SHARDS)
def test_ragged_rows_keep_their_rows(rows: list[list[int]], shards: int) -> None:
    num = Ragged.from_lists(rows)
    indices = shard_of(num.values, shards)
    splits, positions = ragged_split_by_indices(indices, num, shards)
    numbered = iter(range(num.values.shape[0]))
    places = [[(next(numbered), id) for id in row] for row in rows]
    for k in range(shards):
        mine = [[(i, id) for i, id in row if id % 2**64 % shards == k] for row in places]
        assert splits[k].to_lists() == [[id for _, id in row] for row in mine]
        assert positions[k].to_lists() == [[i for i, _ in row] for row in mine]
    plain = ragged_split_by_indices_plain(indices, num.values, num.row_splits, shards)
    for k in range(shards):
        assert torch.equal(plain[0][k], splits[k].values)
        assert torch.equal(plain[1][k], positions[k].values)
        assert torch.equal(plain[2][k], splits[k].row_splits)


def test_zero_rows_and_rows_without_values() -> None:
    for row_splits in ([0], [0, 0, 0]):
        num = Ragged(torch.empty(0, dtype=torch.int64), torch.tensor(row_splits))
        splits, positions = ragged_split_by_indices(num.values, num, 2)
        for part in (*splits, *positions):
            assert part.row_splits.tolist() == row_splits
            assert part.values.shape == (0,)


@pytest.mark.parametrize("splits", [1, 10, 3000])
def test_results_do_not_depend_on_the_threads(splits: int) -> None:
    n = 100_000  # several blocks
    indices, rows = torch.randint(0, splits, (n,)), torch.randn(n, 3)
    borders = torch.cat([torch.zeros(1), torch.rand(500).mul(n).sort()[0], torch.full((1,), n)])
    num = Ragged(torch.arange(n).flip(0), borders.long())
    found = []
    for count in (1, 2, 4):
        with threads(count):
            parts = split_by_indices(indices, rows, splits)
            back = OPS.split_by_indices_backward(indices, parts)
            found.append((parts, back, ragged_split_by_indices(indices, num, splits)))
    plain = ragged_split_by_indices_plain(indices, num.values, num.row_splits, splits)
    for parts, back, (values, positions) in found:
        assert torch.equal(back, rows)
        for k in range(splits):
            assert torch.equal(parts[k], found[0][0][k])
            assert torch.equal(values[k].values, plain[0][k])
            assert torch.equal(positions[k].values, plain[1][k])
            assert torch.equal(values[k].row_splits, plain[2][k])
    order = indices.sort(stable=True).indices
    assert torch.equal(torch.cat(found[0][0]), rows[order])


def _double(n: int = 9) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 4, (n,)), torch.randn(n, 3, dtype=torch.float64, requires_grad=True)


def test_gradcheck() -> None:
    indices, rows = _double()

    def split(rows: Tensor) -> tuple[Tensor, ...]:
        return tuple(split_by_indices(indices, rows, 5))

    assert torch.autograd.gradcheck(split, rows)
    assert torch.autograd.gradgradcheck(split, rows)


def test_a_part_that_is_not_used_gives_zeros() -> None:
    indices = torch.tensor([0, 1, 0, 2])
    rows = torch.randn(4, 2, requires_grad=True)
    split_by_indices(indices, rows, 3)[0].sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[1, 1], [0, 0], [1, 1], [0, 0]]


def test_opcheck() -> None:
    indices, rows = _double()
    torch.library.opcheck(OPS.split_by_indices.default, (indices, rows, 5))
    parts = [part.detach().requires_grad_() for part in split_by_indices(indices, rows, 5)]
    torch.library.opcheck(OPS.split_by_indices_backward.default, (indices, parts))
    ragged = (indices, torch.arange(9), torch.tensor([0, 4, 4, 9]), 5)
    torch.library.opcheck(OPS.ragged_split_by_indices.default, ragged)


def test_compiled_splits_equal_eager_ones() -> None:
    def program(ids: Tensor, row_splits: Tensor, rows: Tensor) -> tuple[list[Tensor], ...]:
        shards = shard_of(ids, 3)
        splits, positions = ragged_split_by_indices(shards, Ragged(ids, row_splits), 3)
        parts = [2 * part for part in split_by_indices(shards, rows, 3)]
        return [part.values for part in splits], [part.row_splits for part in positions], parts

    ids, row_splits = torch.tensor([5, -1, 7, 7, 2**62]), torch.tensor([0, 2, 2, 5])
    _, rows = _double(5)
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    found, wanted = compiled(ids, row_splits, rows), program(ids, row_splits, rows)
    for ours, eager in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, eager, strict=True))
    (grad,) = torch.autograd.grad([part.sum() for part in found[2]], rows)
    assert torch.equal(grad, torch.full_like(rows, 2))
    with pytest.raises(ValueError, match="indices has shape"):
        compiled(ids, row_splits, rows.detach()[:4])


@pytest.mark.parametrize("bad", [-1, 3, 2**62, -(2**63)])
def test_d18_an_index_out_of_range_is_refused(bad: int) -> None:
    indices, rows = torch.tensor([0, bad, 2]), torch.randn(3, 2)
    for split in (split_by_indices, split_by_indices_plain):
        with pytest.raises(ValueError, match=f"indices holds {bad}"):
            split(indices, rows, 3)
    with pytest.raises(ValueError, match=f"indices holds {bad}"):
        ragged_split_by_indices(indices, Ragged.from_lists([[1, 2], [3]]), 3)
    with pytest.raises(ValueError, match=f"indices holds {bad}"):
        OPS.split_by_indices_backward(indices, [rows, rows, rows])


def test_d1_negative_ids_are_split_by_their_unsigned_remainder() -> None:
    ids = torch.tensor([-1, -10, 7, -(2**63)])
    parts = split_by_indices(shard_of(ids, 10), ids, 10)
    # Floored, -1 would be in shard 9; truncated, in shard -1.
    assert {k: p.tolist() for k, p in enumerate(parts) if len(p)} == {
        5: [-1],
        6: [-10],
        7: [7],
        8: [-(2**63)],
    }


INDICES, NUM = torch.tensor([0, 1]), Ragged.from_lists([[1], [2]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((INDICES, torch.zeros(3), 2), "indices has shape"),
        ((INDICES, torch.zeros(2), 0), "num_splits is 0"),
        ((INDICES, torch.zeros(2), 1.5), "num_splits is 1.5"),
        ((INDICES.int(), torch.zeros(2), 2), "int32"),
        ((INDICES.view(1, 2), torch.zeros(1), 2), "indices has shape"),
        (([0, 1], torch.zeros(2), 2), "indices is a list"),
        ((INDICES, [1, 2], 2), "tensor is a list"),
        ((INDICES, torch.zeros(()), 2), "one row"),
    ],
)
def test_bad_splits_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_by_indices(*arguments)


@pytest.mark.parametrize(
    ("indices", "num", "splits", "message"),
    [
        (INDICES, Ragged.from_lists([[1]]), 2, "indices has shape"),
        (INDICES, torch.zeros(2), 2, "num is a Tensor"),
        (INDICES, NUM, 0, "num_splits is 0"),
        ([0, 1], NUM, 2, "indices is a list"),
        (INDICES, Ragged.trusted(NUM.values, torch.tensor([0, 2, 1, 2])), 2, "falls from 2 to 1"),
        (INDICES, Ragged.trusted(NUM.values, torch.tensor([0, 1, 3])), 2, "from 0 to 3"),
        (INDICES, Ragged.trusted(NUM.values, torch.tensor([1, 2])), 2, "from 1 to 2"),
        (INDICES, Ragged(NUM.values.float(), NUM.row_splits), 2, "float32"),
        (INDICES, Ragged.trusted(NUM.values, torch.empty(0, dtype=torch.int64)), 2, "is empty"),
    ],
)
def test_bad_ragged_splits_are_refused(
    indices: Tensor, num: Ragged, splits: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ragged_split_by_indices(indices, num, splits)


def test_nothing_is_moved_between_devices() -> None:
    with pytest.raises(ValueError, match="tensor is on meta, indices on cpu"):
        split_by_indices_plain(INDICES, torch.zeros(2, device="meta"), 2)


def test_parts_of_a_wrong_size_are_not_joined() -> None:
    with pytest.raises(ValueError, match=r"\[2, 1\] rows; their indices say \[1, 1\]"):
        OPS.split_by_indices_backward(INDICES, [torch.zeros(2), torch.zeros(1)])
    with pytest.raises(ValueError, match="differ"):
        OPS.split_by_indices_backward(INDICES, [torch.zeros(1), torch.zeros(1, 2)])
    with pytest.raises(ValueError, match="no splits"):
        OPS.split_by_indices_backward(INDICES, [])


def test_results_share_no_memory_with_the_input_or_each_other() -> None:
    rows = torch.arange(4.0)
    parts = split_by_indices(torch.zeros(4, dtype=torch.int64), rows, 1)
    parts[0].zero_()
    assert rows.tolist() == [0, 1, 2, 3]
    parts = split_by_indices(torch.tensor([0, 1, 0, 1]), rows, 2)
    assert parts[0].untyped_storage().data_ptr() != parts[1].untyped_storage().data_ptr()


def test_input_that_is_not_contiguous_is_taken() -> None:
    indices = torch.tensor([0, 9, 1, 9, 0, 9])[::2]
    rows = torch.arange(12.0).view(2, 6).t()[::2]
    assert [part.tolist() for part in split_by_indices(indices, rows, 2)] == [
        [[0, 6], [4, 10]],
        [[2, 8]],
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_a_million_rows_take_a_few_counters_and_no_copy(count: int) -> None:
    n, splits, blocks = 1_000_000, 10, 61
    indices, rows = torch.arange(n) % splits, torch.arange(16 * n).float().view(n, 16)
    native.reset_scratch_bytes()
    with threads(count):
        parts = split_by_indices(indices, rows, splits)
        # For each block: counters and cursors of every split, and the first bad place.
        assert 0 < native.scratch_bytes() <= blocks * (2 * splits + 1) * 8
        assert torch.equal(OPS.split_by_indices_backward(indices, parts), rows)
    for ours, plain in zip(parts, split_by_indices_plain(indices, rows, splits), strict=True):
        assert torch.equal(ours, plain)
    assert indices.is_contiguous()
    assert rows.contiguous().data_ptr() == rows.data_ptr()


def test_a_million_ids_come_back() -> None:
    ids = torch.from_numpy(np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1_000_000))
    shards = shard_of(ids, 10)
    parts = split_by_indices(shards, ids, 10)
    assert sum(map(len, parts)) == len(ids)
    assert torch.equal(OPS.split_by_indices_backward(shards, parts), ids)
