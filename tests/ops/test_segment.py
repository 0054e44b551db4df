from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.ops import segment

LENGTHS = st.lists(st.integers(0, 4), max_size=6)


def _values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    random = torch.Generator().manual_seed(sum(shape))
    return (torch.randint(-32, 33, shape, generator=random) / 8).to(dtype)  # sums are exact


def _splits(lengths: list[int]) -> Tensor:
    return torch.tensor(list(accumulate(lengths, initial=0)))


def _sums(lengths: list[int], values: Tensor) -> Tensor:
    """Row by row, in the dumbest way."""
    rows, start = [], 0
    for length in lengths:
        rows.append(values[start : start + length].sum(0))
        start += length
    return torch.stack(rows) if rows else values.new_zeros(0, *values.shape[1:])


@settings(deadline=None)
@given(
    st.lists(st.tuples(LENGTHS, st.sampled_from([(), (1,), (3,), (2, 3)])), max_size=4),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_segments_are_summed_as_a_loop_does(
    lists: list[tuple[list[int], tuple[int, ...]]], dtype: torch.dtype
) -> None:
    indices = [
        torch.repeat_interleave(torch.arange(len(n)), torch.tensor(n, dtype=torch.int64)).to(dtype)
        for n, _ in lists
    ]
    values = [_values(sum(n), *rest) for n, rest in lists]
    shapes = [[len(n), *rest] for n, rest in lists]
    found = segment.fused_sorted_segment_sum(indices, values, shapes)
    wanted = [_sums(n, value) for (n, _), value in zip(lists, values, strict=True)]
    assert len(found) == len(lists)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@settings(deadline=None)
@given(
    st.integers(0, 5).flatmap(
        lambda rows: st.lists(
            st.tuples(
                st.lists(st.integers(0, 4), min_size=rows, max_size=rows),
                st.lists(st.integers(0, 3), max_size=3),
            ),
            max_size=4,
        )
    )
)
def test_tables_are_summed_and_cut_as_a_loop_does(
    tables: list[tuple[list[int], list[int]]],
) -> None:
    splits = [_splits(lengths) for lengths, _ in tables]
    vectors = [_values(sum(lengths), sum(widths)).requires_grad_() for lengths, widths in tables]
    found = segment.fused_reduce_and_split(splits, vectors, [widths for _, widths in tables])
    wanted = [
        part
        for (lengths, widths), value in zip(tables, vectors, strict=True)
        for part in _sums(lengths, value).split(widths, dim=1)
        if widths
    ]
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    if found:
        _same_gradients(found, wanted, vectors)


def _same_gradients(found: list[Tensor], wanted: list[Tensor], vectors: list[Tensor]) -> None:
    fed = [_values(*part.shape) for part in found]
    ours = torch.autograd.grad(found, vectors, fed, allow_unused=True)
    theirs = torch.autograd.grad(
        [x for x in wanted if x.requires_grad],
        vectors,
        [f for x, f in zip(wanted, fed, strict=True) if x.requires_grad],
        allow_unused=True,
    )
    for one, other, vector in zip(ours, theirs, vectors, strict=True):
        assert one is not None
        assert one.shape == vector.shape
        assert torch.equal(one, torch.zeros_like(vector) if other is None else other)


def test_gradients_are_those_of_differences() -> None:
    at, splits = torch.tensor([0, 2, 2]), torch.tensor([0, 2, 2, 3])
    one = _values(3, 2, dtype=torch.float64).requires_grad_()
    other = _values(3, 4, dtype=torch.float64).requires_grad_()

    def segments(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return tuple(segment.fused_sorted_segment_sum([at, at], [a, b], [[3, 2], [5, 4]]))

    def slices(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return tuple(segment.fused_reduce_and_split([splits, splits], [a, b], [[2], [1, 3]]))

    assert torch.autograd.gradcheck(segments, (one, other))
    assert torch.autograd.gradcheck(slices, (one, other))
    assert torch.autograd.gradgradcheck(slices, (one, other))


def test_outputs_that_nobody_uses_give_zeros() -> None:
    splits = torch.tensor([0, 2])
    vectors = [torch.ones(2, 3, requires_grad=True), torch.ones(2, 1, requires_grad=True)]
    found = segment.fused_reduce_and_split([splits, splits], vectors, [[1, 2], [1]])
    first, second = torch.autograd.grad(found[1].sum(), vectors, allow_unused=True)
    assert first.tolist() == [[0, 1, 1], [0, 1, 1]]
    assert second is None or second.tolist() == [[0], [0]]


def test_slices_do_not_share_memory_even_of_one_row() -> None:
    first, second = segment.fused_reduce_and_split(
        [torch.tensor([0, 1])], [torch.tensor([[1.0, 2.0]])], [[1, 1]]
    )
    first.zero_()
    assert second.tolist() == [[2.0]]


def test_monolith_name_is_the_same_function() -> None:
    assert segment.fused_reduce_and_split_gpu is segment.fused_reduce_and_split


@settings(deadline=None)
@given(st.lists(LENGTHS, max_size=5), st.sampled_from([torch.int32, torch.int64]))
def test_merged_borders_are_those_of_the_joined_rows(
    parts: list[list[int]], dtype: torch.dtype
) -> None:
    borders = [_splits(part) for part in parts]
    merged = torch.cat([torch.zeros(0, dtype=torch.int64), *borders])
    sizes = torch.tensor([len(part) for part in borders], dtype=dtype)
    found = segment.normalize_merged_split(merged, sizes)
    assert found.tolist() == _splits([length for part in parts for length in part]).tolist()
    if merged.numel():
        assert found.data_ptr() != merged.data_ptr()


def test_d9_unsorted_segments_are_refused_on_the_cpu_too() -> None:
    values = torch.ones(3, 1)
    with pytest.raises(ValueError, match=r"indices\[0\] falls"):
        segment.fused_sorted_segment_sum([torch.tensor([0, 1, 0])], [values], [[2, 1]])


def test_d11_a_part_without_borders_is_refused() -> None:
    with pytest.raises(ValueError, match="row_split_size holds 0"):
        segment.normalize_merged_split(torch.tensor([0, 1]), torch.tensor([0, 2]))


@pytest.mark.parametrize(
    ("borders", "sizes", "said"),
    [
        ([0, 1, 0, 2], [2, 1], "adds up to 3"),
        ([0, 1], [-1, 3], "holds -1"),
        ([0, 1, 1, 2], [2, 2], "row_split is 1 at 2"),
        ([1, 2], [2], "row_split is 1 at 0"),
        ([0, 3, 2], [3], "row_split is 2 at 2"),
        ([0], [1, 1], "2 parts, row_split 1 borders"),
    ],
)
def test_parts_that_are_no_borders_are_refused(
    borders: list[int], sizes: list[int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        segment.normalize_merged_split(torch.tensor(borders), torch.tensor(sizes))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"shapes": []}, "shapes has 0 entries, indices 1"),
        ({"values": []}, "values has 0 entries, indices 1"),
        ({"indices": [torch.tensor([0])]}, r"values\[0\] has shape \(2, 3\)"),
        ({"indices": [torch.tensor([0, 4])]}, r"indices\[0\] holds 4"),
        ({"indices": [torch.tensor([-1, 0])]}, r"indices\[0\] holds -1"),
        ({"indices": [torch.tensor([0.0, 1.0])]}, r"indices\[0\] has dtype"),
        ({"shapes": [[4, 2]]}, r"shapes\[0\] is \[4, 2\]"),
        ({"shapes": [[4]]}, r"shapes\[0\] is \[4\]"),
        ({"shapes": [[]]}, r"shapes\[0\] is \[\]"),
        ({"shapes": [[-4, 3]]}, r"shapes\[0\] is -4"),
        ({"values": [torch.tensor(1.0)]}, r"values\[0\] has shape \(\)"),
        ({"values": [torch.zeros(2, 3, dtype=torch.int64)]}, r"values\[0\] has dtype"),
    ],
)
def test_bad_segments_are_refused(changed: dict[str, Any], said: str) -> None:
    good = {"indices": [torch.tensor([0, 1])], "values": [torch.zeros(2, 3)], "shapes": [[4, 3]]}
    with pytest.raises(ValueError, match=said):
        segment.fused_sorted_segment_sum(**{**good, **changed})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"slice_dims": []}, "slice_dims has 0 entries, splits 2"),
        ({"embeddings": []}, "embeddings has 0 entries, splits 2"),
        ({"slice_dims": [[2], [2]]}, r"slice_dims\[1\] is \[2\]"),
        ({"slice_dims": [[2], [4, -1]]}, r"slice_dims\[1\] is \[4, -1\]"),
        ({"splits": [torch.tensor([0, 2]), torch.tensor([0, 1, 2])]}, r"splits\[1\] has 2 rows"),
        ({"splits": [torch.tensor([0, 2]), torch.tensor([0, 1])]}, r"splits\[1\] goes from 0 to 1"),
        ({"splits": [torch.tensor([0, 2]), torch.tensor([1, 2])]}, r"splits\[1\] goes from 1"),
        (
            {"splits": [torch.tensor([0, 1, 2]), torch.tensor([0, 3, 2])]},
            r"splits\[1\] falls from 3 to 2",
        ),
        ({"splits": [torch.tensor([], dtype=torch.int64)] * 2}, "is empty"),
    ],
)
def test_bad_tables_are_refused(changed: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {
        "splits": [torch.tensor([0, 2])] * 2,
        "embeddings": [torch.zeros(2, 2), torch.zeros(2, 3)],
        "slice_dims": [[2], [3]],
    }
    with pytest.raises(ValueError, match=said):
        segment.fused_reduce_and_split(**{**good, **changed})


@given(LENGTHS)
def test_rowids_are_computed_once(lengths: list[int]) -> None:
    ragged = Ragged(torch.arange(sum(lengths)), _splits(lengths))
    first = segment.fused_value_rowids(ragged)
    assert first.tolist() == [row for row, length in enumerate(lengths) for _ in range(length)]
    assert segment.fused_value_rowids(ragged) is first


def test_rowids_of_what_is_not_ragged_are_refused() -> None:
    for value in (torch.tensor([0, 1]), [[1]], None):
        with pytest.raises(ValueError, match="pass a Ragged"):
            segment.fused_value_rowids(value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="goes from 0 to 3"):
        segment.fused_value_rowids(Ragged.trusted(torch.arange(2), torch.tensor([0, 3])))


def _examples() -> dict[str, tuple[object, ...]]:
    at, splits = torch.tensor([0, 2, 2]), torch.tensor([0, 2, 2, 3])
    one, other = (torch.randn(3, width, requires_grad=True) for width in (2, 3))
    return {
        "fused_sorted_segment_sum": ([at, at], [one, other], [4, 2, 3, 3], [2, 2], False),
        "fused_reduce_and_split": ([splits, splits], [one, other], [1, 1, 3], [2, 1], False),
        "normalize_merged_split": (torch.tensor([0, 2, 0, 1]), torch.tensor([2, 2]), False),
    }


@pytest.mark.parametrize("name", sorted(_examples()))
def test_torch_takes_the_op(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.hedgerow, name).default, _examples()[name])


def test_a_compiled_pipeline_equals_the_eager_one() -> None:
    def pipeline(splits: Tensor, ids: Tensor, values: Tensor) -> Tensor:
        first, second = segment.fused_reduce_and_split([splits], [values], [[1, 2]])
        (third,) = segment.fused_sorted_segment_sum([ids], [values], [[splits.shape[0] - 1, 3]])
        return torch.cat([first, second], dim=1) * third

    compiled = torch.compile(pipeline, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in ([2, 0, 3], [1, 1], [0, 4, 2, 2]):
        outs = []
        for call in (pipeline, compiled):
            values = _values(sum(lengths), 3).requires_grad_()
            ids = segment.fused_value_rowids(Ragged(values.detach(), _splits(lengths)))
            out = call(_splits(lengths), ids, values)
            out.sum().backward()
            outs.append((out.detach(), values.grad))
        torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=0)


def test_sums_are_repeatable_with_more_threads() -> None:
    random = torch.Generator().manual_seed(3)
    splits = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(1, 300).cumsum(0)])
    values = torch.randn(int(splits[-1]), 17, generator=random)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(segment.fused_reduce_and_split([splits], [values], [[17]])[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    "changed",
    [
        *[{"indices": [value]} for value in ([0], np.zeros(1, np.int64), "a", None)],
        *[{"values": [value]} for value in ([[1.0]], np.ones((1, 1)), "a", torch.tensor(1.0))],
        *[{"shapes": [value]} for value in (3, torch.tensor(3), "31", [3, 1.0], None, [True, 1])],
        {"indices": "a"},
        {"values": None},
        {"shapes": 3},
        {"values": [torch.ones(1, 1, device="meta")]},
    ],
    ids=str,
)
def test_other_kinds_for_segments_are_a_value_error(changed: dict[str, Any]) -> None:
    right = {"indices": [torch.tensor([0])], "values": [torch.ones(1, 1)], "shapes": [[3, 1]]}
    with pytest.raises(ValueError, match=next(iter(changed))):
        segment.fused_sorted_segment_sum(**{**right, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        *[{"splits": [value]} for value in ([0, 1], np.arange(2), "a", None)],
        *[{"embeddings": [value]} for value in ([[1.0]], np.ones((1, 1)), "a")],
        *[{"slice_dims": value} for value in ([1], [[1.0]], ["1"], None, [None], "1")],
        {"embeddings": [torch.ones(1, 1, device="meta")]},
    ],
    ids=str,
)
def test_other_kinds_for_tables_are_a_value_error(changed: dict[str, Any]) -> None:
    right = {
        "splits": [torch.tensor([0, 1])],
        "embeddings": [torch.ones(1, 1)],
        "slice_dims": [[1]],
    }
    with pytest.raises(ValueError, match=next(iter(changed))):
        segment.fused_reduce_and_split(**{**right, **changed})


@pytest.mark.parametrize("value", [[0, 1], np.arange(2), "a", None], ids=str)
def test_other_kinds_of_borders_are_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match="row_split is a"):
        segment.normalize_merged_split(value, torch.tensor([2]))
    with pytest.raises(ValueError, match="row_split_size is a"):
        segment.normalize_merged_split(torch.tensor([0, 1]), value)
    with pytest.raises(ValueError, match="meta"):
        segment.normalize_merged_split(torch.tensor([0, 1]), torch.tensor([2], device="meta"))
