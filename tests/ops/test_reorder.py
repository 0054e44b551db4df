"""Reordering by shard against plain Python, its errors, its memory, and its forms in torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow import native
from hedgerow.ops.reorder import (
    fused_reorder_by_indices,
    fused_reorder_by_indices_plain,
    reorder_by_indices,
    reorder_by_indices_plain,
)
from hedgerow.routing.router import Router
from tests.support import EXTREME_IDS, threads

IDS = st.one_of(st.integers(-5, 9), st.sampled_from(EXTREME_IDS), st.integers(-(2**63), 2**63 - 1))
KEYS = st.sampled_from([0.0, -0.0, 1.5, -2.25, math.nan, math.inf])


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


# ---- one list


def model(keys: list[float], shards: list[int], count: int) -> tuple[list[int], list[int]]:
    """Places of the rows that stay, and how many each shard has."""
    seen: set[float] = set()
    by_shard: list[list[int]] = [[] for _ in range(count)]
    for i, key in enumerate(keys):
        if math.isnan(key) or key not in seen:
            seen.add(key)
            by_shard[shards[i]].insert(0, i)
    return [i for one in by_shard for i in one], [len(one) for one in by_shard]


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, st.integers(0, 3)), max_size=60), st.sampled_from(["32", "64"]))
def test_ids_are_deduplicated_and_ordered(rows: list[tuple[int, int]], bits: str) -> None:
    ids = ints([key for key, _ in rows])
    shards = torch.tensor([shard for _, shard in rows], dtype=getattr(torch, f"int{bits}"))
    order, sizes = model([key for key, _ in rows], shards.tolist(), 4)
    for output, found in (
        reorder_by_indices(ids, shards, 4),
        reorder_by_indices_plain(ids, shards, 4, False),
    ):
        assert output.tolist() == ids[ints(order)].tolist()
        assert (found.tolist(), found.dtype) == (sizes, torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@settings(deadline=None)
@given(keys=st.lists(KEYS, max_size=30))
def test_a_rows_key_is_its_first_column(dtype: torch.dtype, keys: list[float]) -> None:
    rows = torch.arange(3.0 * len(keys)).reshape(-1, 3).to(dtype)
    rows[:, 0] = torch.tensor(keys, dtype=dtype)
    shards = torch.arange(len(keys)) % 3
    order, sizes = model(keys, shards.tolist(), 3)
    for output, found in (
        reorder_by_indices(rows, shards, 3),
        reorder_by_indices_plain(rows, shards, 3, False),
    ):
        assert output.dtype == dtype
        torch.testing.assert_close(output, rows[ints(order)], rtol=0, atol=0, equal_nan=True)
        assert found.tolist() == sizes


def test_rows_that_are_not_contiguous_are_taken() -> None:
    rows = torch.tensor([[1.0, 2.0, 1.0], [5.0, 6.0, 7.0]]).T
    output, sizes = reorder_by_indices(rows, torch.tensor([0, 1, 0]), 2)
    assert output.tolist() == [[1.0, 5.0], [2.0, 6.0]]
    assert sizes.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((ints([1, 2]), ints([0]), 2), r"shard_ids has shape \(1,\)"),
        ((ints([1]), ints([0]), 0), "num_of_shards is 0"),
        ((ints([1]), ints([0]), 1.5), "num_of_shards is 1.5"),
        ((ints([1]), torch.tensor([0.0]), 2), "shard_ids has dtype"),
        ((torch.tensor([1], dtype=torch.int32), ints([0]), 2), "input has dtype"),
        ((torch.tensor([1.0]), ints([0]), 2), r"input has shape \(1,\)"),
        ((ints([[1]]), ints([0]), 2), r"input has shape \(1, 1\)"),
        ((torch.zeros(1, 0), ints([0]), 2), "without a column"),
        (([1], ints([0]), 2), "input is a list"),
        ((ints([1]), [0], 2), "shard_ids is a list"),
    ],
)
def test_bad_arguments_of_reorder(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reorder_by_indices(*args)


@pytest.mark.parametrize("wrong", [-1, 2])
def test_d18_a_shard_out_of_range_is_an_error(wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"shard_ids holds {wrong}; values must be in \[0, 2\)"):
        reorder_by_indices(ints([1, 2]), ints([0, wrong]), 2)


# ---- slots


def fused_model(
    slots: list[list[int]], shards: int, dims: list[int], rank0_empty: bool
) -> tuple[list[int], ...]:
    router = Router("roundrobin", shards, rank0_empty=rank0_empty)
    output, shard_sizes, slot_sizes = [], [0] * shards, []
    places: list[dict[int, int]] = [{} for _ in slots]
    value = 0
    for shard in range(shards):
        for m, ids in enumerate(slots):
            owners = router.owners(ints(ids)).tolist()
            mine = dict.fromkeys(i for i, own in zip(ids, owners, strict=True) if own == shard)
            for i in mine:
                places[m][i] = value
                value += dims[m]
            output += mine
            slot_sizes.append(len(mine))
            shard_sizes[shard] += len(mine)
    offsets = [places[m][i] for m, ids in enumerate(slots) for i in ids]
    return output, shard_sizes, slot_sizes, [len(ids) for ids in slots], offsets


@settings(deadline=None)
@given(
    slots=st.lists(st.lists(IDS, max_size=25), min_size=1, max_size=6),
    shards=st.integers(1, 40),
    dims=st.lists(st.integers(0, 9), min_size=6, max_size=6),
    rank0_empty=st.booleans(),
)
def test_slots_are_deduplicated_and_ordered(
    slots: list[list[int]], shards: int, dims: list[int], rank0_empty: bool
) -> None:
    rank0_empty = rank0_empty and shards > 1
    dims = dims[: len(slots)]
    inputs = [ints(ids) for ids in slots]
    wanted = fused_model(slots, shards, dims, rank0_empty)
    for made in (
        fused_reorder_by_indices(inputs, shards, dims, rank0_empty),
        fused_reorder_by_indices_plain(inputs, shards, dims, rank0_empty),
    ):
        assert tuple(one.tolist() for one in made) == wanted
        assert [one.dtype for one in made] == [torch.int64] + [torch.int32] * 4


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 8, 64, 255, 256, 300])
@pytest.mark.parametrize("rank0_empty", [False, True])
def test_shards_are_the_routers(shards: int, rank0_empty: bool) -> None:
    if rank0_empty and shards == 1:
        return
    ids = torch.cat([torch.randint(-(2**63), 2**63 - 1, (3000,)), ints(EXTREME_IDS)]).unique()
    made = fused_reorder_by_indices([ids], shards, [1], rank0_empty)
    owners = Router("roundrobin", shards, rank0_empty=rank0_empty).owners(made.output)
    expected = torch.repeat_interleave(torch.arange(shards), made.shard_sizes.long())
    assert torch.equal(owners, expected)


def test_d1_negative_ids_have_the_shard_of_their_bits() -> None:
    made = fused_reorder_by_indices([ints([-1, -2, -(2**63)])], 10, [1])
    assert made.output.tolist() == [-2, -1, -(2**63)]  # 2^64-2, 2^64-1 and 2^63 modulo 10
    assert made.shard_sizes.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 0]


def test_d2_shard_0_owns_ids_unless_it_is_told_not_to() -> None:
    """Monolith leaves it empty above 4 shards, unless the environment says otherwise."""
    ids = [torch.arange(16)]
    assert fused_reorder_by_indices(ids, 8, [1]).shard_sizes.tolist() == [2] * 8
    assert fused_reorder_by_indices(ids, 8, [1], rank0_empty=True).shard_sizes[0] == 0


@pytest.mark.parametrize("dim", [2**30, 2**31, 2**62, 2**63 - 1])
@pytest.mark.parametrize("form", [fused_reorder_by_indices, fused_reorder_by_indices_plain])
def test_d6_more_values_than_offsets_reach_are_an_error(dim: int, form: Any) -> None:
    with pytest.raises(ValueError, match=r"32-bit offsets reach fewer than 2147483648"):
        form([ints([1]), ints([5, 6, 5])], 2, [0, dim], False)


def test_d6_the_last_offset_that_fits_is_right() -> None:
    made = fused_reorder_by_indices([ints([4, 8, 4])], 2, [2**30 - 1])
    assert made.fused_embedding_offsets.tolist() == [0, 2**30 - 1, 0]
    empty = fused_reorder_by_indices([ints([])], 2, [2**62])
    assert empty.output.tolist() == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([], 2, []), "inputs is empty"),
        (([ints([1])], 2, [1, 2]), "2 dim_sizes for 1 inputs"),
        (([ints([1])], 0, [1]), "num_of_shards is 0"),
        (([ints([1])], 2, [-1]), "dim_sizes is -1"),
        (([ints([1])], 2, [0.5]), "dim_sizes is 0.5"),
        (([ints([1])], 1, [1], True), "rank0_empty with 1 shard"),
        (([ints([[1]])], 2, [1]), r"inputs\[0\] has shape"),
        (([ints([1]), torch.tensor([1.0])], 2, [1, 1]), r"inputs\[1\] has dtype"),
        (([ints([1]), [2]], 2, [1, 1]), r"inputs\[1\] is a list"),
    ],
)
def test_bad_arguments_of_fused_reorder(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fused_reorder_by_indices(*args)


def test_threads_change_nothing() -> None:
    generator = torch.Generator().manual_seed(3)
    slots = [
        torch.randint(-(2**62), 2**62, (size,), generator=generator).repeat(2)
        for size in (25_000, 0, 1, 15_000, 4000)
    ]
    found = []
    for count in (1, 2, 4):
        with threads(count):
            found.append(fused_reorder_by_indices(slots, 37, [3, 1, 4, 1, 5]))
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


def test_scratch_is_a_map_and_two_words_an_id() -> None:
    """A million ids: two 32-bit words each, a map of one slot for each thread, a few per shard."""
    slots = list(torch.randint(-(2**62), 2**62, (1_000_000,)).view(100, 10_000))
    for count in (1, 2):
        with threads(count):
            native.reset_scratch_bytes()
            fused_reorder_by_indices(slots, 256, [16] * 100)
            a_map = 16 * 2**15  # 16 bytes a slot, the power of two from 2 * 10,000 up
            small = 3 * 4 * 256 * 101 + 12 * 101
            assert native.scratch_bytes() <= 8 * 1_000_000 + count * a_map + small
    native.reset_scratch_bytes()
    ids = torch.cat(slots)
    reorder_by_indices(ids, torch.zeros(len(ids), dtype=torch.int32), 4)
    assert native.scratch_bytes() <= 4 * 1_000_000 + 16 * 2**21 + 8 * 4


def test_outputs_are_no_views_and_share_nothing() -> None:
    ids = ints([3, 3, 3, 4])
    output, _ = reorder_by_indices(ids, ints([0, 0, 0, 0]), 1)
    assert output._base is None
    assert output.data_ptr() != ids.data_ptr()
    made = fused_reorder_by_indices([ids], 1, [1])
    assert len({one.untyped_storage().data_ptr() for one in made}) == 5


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_torch_knows_reorder(dtype: torch.dtype) -> None:
    input = ints([1, 2, 1]) if dtype == torch.int64 else torch.tensor([[1.0, 2.0], [1.0, 3.0]])
    shards = torch.zeros(len(input), dtype=torch.int32)
    torch.library.opcheck(torch.ops.hedgerow.reorder_by_indices.default, (input, shards, 2, False))


def test_torch_knows_fused_reorder() -> None:
    args = ([ints([1, 2, 1]), ints([]), ints([-5])], 3, [2, 1, 4], False)
    torch.library.opcheck(torch.ops.hedgerow.fused_reorder_by_indices.default, args)
