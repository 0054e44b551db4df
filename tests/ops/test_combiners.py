from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.ops.combiners import Combiner, FirstN, ReduceMean, ReduceSum
from hedgerow.ops.reduce import reduce_mean, reduce_sum
from hedgerow.ops.segment import fused_value_rowids

LENGTHS = st.lists(st.integers(0, 4), max_size=6)


def _key(lengths: list[int]) -> Ragged:
    """Ids that say nothing: negative, huge and equal ones."""
    ids = torch.tensor([-1, 2**63 - 1, -(2**63), 7])[torch.arange(sum(lengths)) % 4]
    return Ragged(ids, torch.tensor(list(accumulate(lengths, initial=0))))


def _vectors(count: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    random = torch.Generator().manual_seed(count)
    return (torch.randint(-32, 33, (count, dim), generator=random) / 8).to(dtype)


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 3), st.integers(1, 5))
def test_rows_are_combined_as_a_loop_does(lengths: list[int], dim: int, n: int) -> None:
    key, vectors = _key(lengths), _vectors(sum(lengths), dim)
    sums, first = torch.zeros(len(lengths), dim), torch.zeros(len(lengths), n, dim)
    borders = key.row_splits.tolist()
    for row, start in enumerate(borders[:-1]):
        for place, vector in enumerate(vectors[start : borders[row + 1]]):
            sums[row] += vector
            if place < n:
                first[row, place] = vector
    counts = torch.tensor(lengths).clamp_min(1).unsqueeze(1)
    assert torch.equal(ReduceSum().combine(key, vectors), sums)
    torch.testing.assert_close(ReduceMean().combine(key, vectors), sums / counts)
    assert torch.equal(FirstN(n).combine(key, vectors), first)


@settings(deadline=None)
@given(LENGTHS)
def test_sum_and_mean_equal_the_reductions_by_row_number(lengths: list[int]) -> None:
    key, vectors = _key(lengths), _vectors(sum(lengths), 3).requires_grad_()
    rows, count = fused_value_rowids(key)[:, None], torch.tensor([len(lengths)])
    for combiner, reduce in ((ReduceSum(), reduce_sum), (ReduceMean(), reduce_mean)):
        ours, theirs = combiner.combine(key, vectors), reduce(rows, vectors, count)
        torch.testing.assert_close(ours, theirs)
        fed = torch.randn_like(ours)
        grads = [torch.autograd.grad(out, vectors, fed)[0] for out in (ours, theirs)]
        torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("combiner", [ReduceSum(), ReduceMean(), FirstN(1), FirstN(2), FirstN(9)])
def test_gradients_are_those_of_differences(combiner: Combiner) -> None:
    key = _key([2, 0, 3, 1])
    vectors = _vectors(6, 2, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: combiner.combine(key, x), vectors)
    assert torch.autograd.gradgradcheck(lambda x: combiner.combine(key, x), vectors)


def test_padding_is_zero_whatever_lies_behind_a_row() -> None:
    vectors = torch.tensor([[1.0], [float("nan")], [float("inf")]], requires_grad=True)
    found = FirstN(2).combine(_key([1, 2, 0]), vectors)
    assert found[0].tolist() == [[1.0], [0.0]]
    assert found[2].tolist() == [[0.0], [0.0]]
    (grad,) = torch.autograd.grad(found, vectors, torch.ones_like(found))
    assert grad.tolist() == [[1.0], [1.0], [1.0]]


def test_a_nested_list_becomes_float32() -> None:
    for combiner in (ReduceSum(), ReduceMean(), FirstN(1)):
        found = combiner.combine(Ragged.from_lists([[1], []]), [[1, 2]])
        assert found.dtype == torch.float32
        assert found.flatten().tolist() == [1.0, 2.0, 0.0, 0.0]


def test_lengths_of_sequences() -> None:
    assert [c.max_seq_length for c in (ReduceSum(), ReduceMean(), FirstN(3))] == [0, 0, 3]


def test_the_name_has_no_effect() -> None:
    assert ReduceSum().combine(Ragged.from_lists([[1]]), [[1.0]], name="sum").tolist() == [[1.0]]


def test_a_combiner_without_combine_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Combiner(0)  # type: ignore[abstract]


def test_d21_firstn_of_nothing_is_a_valueerror() -> None:
    for n in (0, -1, 1.5, "2"):
        with pytest.raises(ValueError, match="seq_length is"):
            FirstN(n)  # type: ignore[arg-type]


def test_d8_the_mean_of_an_empty_row_is_zero() -> None:
    assert ReduceMean().combine(Ragged.from_lists([[], [1]]), [[4.0]]).tolist() == [[0.0], [4.0]]


@pytest.mark.parametrize("combiner", [ReduceSum(), ReduceMean(), FirstN(2)])
@pytest.mark.parametrize(
    ("key", "embedding", "said"),
    [
        (
            Ragged.from_lists([[1, 2]]),
            torch.zeros(1, 2),
            "embedding has 1 vectors, key 2 values",
        ),
        (Ragged.from_lists([[1]]), torch.zeros(1), "embedding has shape"),
        (Ragged.from_lists([[1]]), torch.zeros(1, 1, dtype=torch.int64), "embedding has dtype"),
        (Ragged.trusted(torch.arange(2), torch.tensor([0, 2, 1, 2])), torch.zeros(2, 1), "falls"),
        ([[1]], torch.zeros(1, 1), "key is a list; pass a Ragged"),
    ],
)
def test_bad_arguments_are_refused(
    combiner: Combiner, key: Any, embedding: Tensor, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        combiner.combine(key, embedding)


def test_a_key_on_another_device_is_refused() -> None:
    for combiner in (ReduceSum(), ReduceMean(), FirstN(2)):
        with pytest.raises(ValueError, match="key is on cpu, embedding on meta"):
            combiner.combine(Ragged.from_lists([[1]]), torch.zeros(1, 1, device="meta"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_in_float32(dtype: torch.dtype) -> None:
    vectors = torch.ones(4096, 1, dtype=dtype)
    for combiner, wanted in ((ReduceSum(), 4096), (ReduceMean(), 1)):
        found = combiner.combine(_key([4096]), vectors)
        assert (found.dtype, found.item()) == (dtype, wanted)


@pytest.mark.parametrize("name", ["combine_sum", "combine_mean", "combine_first"])
def test_torch_takes_the_op(name: str) -> None:
    more = (2,) if name == "combine_first" else ()
    borders, vectors = torch.tensor([0, 2, 2, 5]), torch.randn(5, 3, requires_grad=True)
    torch.library.opcheck(
        getattr(torch.ops.hedgerow, name).default, (borders, vectors, 3, 5, *more)
    )


@pytest.mark.parametrize("combiner", [ReduceSum(), ReduceMean(), FirstN(3)])
def test_compiled_with_an_unknown_batch_sizes_of_a_row_stay_numbers(combiner: Combiner) -> None:
    shapes: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        (last,) = [node for node in graph.graph.nodes if "combine_" in str(node.target)]
        shapes.append(last.meta["example_value"].shape)
        return graph.forward

    def pool(ids: Tensor, borders: Tensor, vectors: Tensor) -> Tensor:
        return combiner.combine(Ragged(ids, borders), vectors)

    compiled = torch.compile(pool, dynamic=True, fullgraph=True, backend=backend)
    for lengths in ([2, 0, 4], [5, 1], [1, 2, 0, 6]):
        key, vectors = _key(lengths), _vectors(sum(lengths), 7)
        assert torch.equal(
            compiled(key.values, key.row_splits, vectors), combiner.combine(key, vectors)
        )
    assert len(shapes) == 1  # one program for every batch
    batch, *rest = shapes[0]
    assert isinstance(batch, torch.SymInt)
    assert [type(size) for size in rest] == [int] * len(rest)
    assert rest == ([3, 7] if combiner.max_seq_length else [7])


def test_a_compiled_combiner_has_its_gradient_and_its_checks() -> None:
    def pool(borders: Tensor, vectors: Tensor) -> Tensor:
        key = Ragged(borders.new_zeros(vectors.shape[0]), borders)
        first = FirstN(2).combine(key, vectors * 2)
        return ReduceMean().combine(key, vectors) + ReduceSum().combine(key, vectors) + first.sum(1)

    compiled = torch.compile(pool, dynamic=True, fullgraph=True, backend="aot_eager")
    outs = []
    for call in (pool, compiled):
        vectors = _vectors(6, 4).requires_grad_()
        out = call(_key([2, 0, 4]).row_splits, vectors)
        out.sum().backward()
        outs.append((out.detach(), vectors.grad))
    torch.testing.assert_close(outs[0], outs[1])
    with pytest.raises(ValueError, match="goes from 0 to 5"):
        compiled(torch.tensor([0, 1, 2, 5]), _vectors(6, 4))


@pytest.mark.parametrize("combiner", [ReduceSum(), ReduceMean(), FirstN(2)])
def test_a_vector_for_each_value_also_where_no_content_is_checked(combiner: Combiner) -> None:
    key = Ragged.trusted(torch.arange(3), torch.tensor([0, 2]))  # the borders alone would fit
    with pytest.raises(ValueError, match="embedding has 2 vectors, key 3 values"):
        combiner.combine(key, torch.zeros(2, 1))

    def pool(ids: Tensor, borders: Tensor, vectors: Tensor) -> Tensor:
        return combiner.combine(Ragged(ids, borders), vectors)

    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="embedding has 2 vectors, key 3 values"):
        compiled(torch.arange(3), torch.tensor([0, 2]), torch.zeros(2, 1))


@pytest.mark.parametrize("embedding", [None, "abc", [["a"]], [[1.0], [1.0, 2.0]], {}], ids=str)
def test_what_is_no_vector_is_a_value_error(embedding: Any) -> None:
    for combiner in (ReduceSum(), ReduceMean(), FirstN(2)):
        with pytest.raises(ValueError, match="embedding is a"):
            combiner.combine(Ragged.from_lists([[1]]), embedding)
