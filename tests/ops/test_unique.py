"""Distinct keys stand in first-seen order, row by row, with the offsets of all occurrences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow import native
from hedgerow.core.ids import Ragged
from hedgerow.monolith.offset_maps import (
    unique_key_with_offset_plain,
    unique_key_with_value_and_offset,
)
from tests.support import EXTREME_IDS, threads

IDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EXTREME_IDS) | st.integers(0, 5)
ROWS = st.lists(st.tuples(st.lists(IDS, max_size=12), st.integers(0, 5)), max_size=8)


@settings(deadline=None)
@given(ROWS)
def test_keys_and_offsets_are_those_of_a_plain_walk(given: list[tuple[list[int], int]]) -> None:
    rows, dims = [row for row, _ in given], [dim for _, dim in given]
    found = unique_key_with_value_and_offset(Ragged.from_lists(rows), dims)
    offset, wanted = 0, []
    for row, dim in given:
        places: dict[int, list[int]] = {}
        for key in row:
            places.setdefault(key, []).append(offset)
            offset += dim
        wanted.append(places)
    assert found.unique_key.to_lists() == [list(places) for places in wanted]
    assert found.value_offset.to_lists() == [list(places.values()) for places in wanted]
    assert found.value_offset.outer_row_splits is found.unique_key.row_splits
    assert found.value_buffer is not None
    assert found.value_buffer.tensor.shape == (offset,)
    key = Ragged.from_lists(rows)
    plain = unique_key_with_offset_plain(key.values, key.row_splits, dims)
    ours = (found.unique_key.values, found.unique_key.row_splits)
    for one, other in zip(
        (*ours, found.value_offset.values, found.value_offset.inner_row_splits), plain, strict=True
    ):
        assert torch.equal(one, other)


def test_results_do_not_depend_on_the_threads() -> None:
    key = Ragged(torch.randint(-50, 50, (20_000,)), torch.arange(0, 20_001, 100))
    dims = [k % 7 for k in range(200)]
    found = []
    for count in (1, 2, 4):
        with threads(count):
            found.append(unique_key_with_value_and_offset(key, dims))
    for other in found[1:]:
        assert torch.equal(other.unique_key.values, found[0].unique_key.values)
        assert torch.equal(other.value_offset.values, found[0].value_offset.values)


def test_d3_the_buffer_holds_zeros() -> None:
    key, dims = Ragged.from_lists([list(range(40_000))]), [25]
    for _ in range(3):
        used = torch.full((1_000_000,), float("nan"))  # so that memory given back is no zeros
        del used
        buffer = unique_key_with_value_and_offset(key, dims).value_buffer
        assert buffer is not None
        assert not buffer.tensor.any()
        assert buffer.tensor.dtype == torch.float32


def test_without_a_buffer_there_is_none() -> None:
    found = unique_key_with_value_and_offset(Ragged.from_lists([[1]]), [2], generate_buffer=False)
    assert found.value_buffer is None


def test_opcheck_and_compiled() -> None:
    values, row_splits = torch.tensor([5, 5, -1, 5]), torch.tensor([0, 3, 3, 4])
    op = torch.ops.hedgerow.unique_key_with_offset.default
    torch.library.opcheck(op, (values, row_splits, [1, 2, 3]))

    def program(values: torch.Tensor, row_splits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = unique_key_with_value_and_offset(Ragged(values, row_splits), [1, 2, 3], False)
        return found.unique_key.values + 1, found.value_offset.values * 2

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    for ours, eager in zip(compiled(values, row_splits), program(values, row_splits), strict=True):
        assert torch.equal(ours, eager)
    with pytest.raises(ValueError, match="falls from 3 to 2"):
        compiled(values, torch.tensor([0, 3, 2, 4]))


@pytest.mark.parametrize(
    ("key", "dims", "message"),
    [
        (Ragged.from_lists([[1], [2]]), [1], "1 widths for 2 rows"),
        (Ragged.from_lists([[1]]), [1, 2], "2 widths for 1 rows"),
        (Ragged.from_lists([[1]]), [-1], "dims holds -1"),
        (Ragged.from_lists([[1]]), [1.5], "dims holds 1.5"),
        (Ragged.from_lists([[1]]), [2**31], "dims holds 2147483648"),
        (torch.tensor([1]), [1], "key is a Tensor"),
        (Ragged(torch.tensor([1.0]), torch.tensor([0, 1])), [1], "float32"),
        (Ragged.trusted(torch.tensor([1]), torch.tensor([0, 2])), [1], "from 0 to 2"),
        (Ragged.trusted(torch.tensor([1]), torch.tensor([0, 1, 0, 1])), [1, 1, 1], "falls"),
    ],
)
def test_bad_keys_are_refused(key: Ragged, dims: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unique_key_with_value_and_offset(key, dims)


def test_a_million_keys_take_one_map_and_one_number_each() -> None:
    key = Ragged(torch.arange(1_000_000) // 2, torch.arange(0, 1_000_001, 100_000))
    native.reset_scratch_bytes()
    with threads(1):
        unique_key_with_value_and_offset(key, [1] * 10, generate_buffer=False)
    slots = 262_144  # of 16 bytes: twice the 100,000 keys of a row, rounded up
    assert native.scratch_bytes() <= 16 * slots + 4 * 1_000_000 + 8 * 10
