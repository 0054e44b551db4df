"""Ragged rows as dense tensors, masks and nested tensors, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import HedgerowError, InputError

CASES = [[], [[]], [[], []], [[1], [], [2, 3, 4], []], [[5, 6], [7, 8]], [[], [9]]]


@pytest.mark.parametrize("rows", CASES)
@pytest.mark.parametrize("length", [None, 0, 2, 5])
def test_places_beyond_a_row_hold_the_padding(rows: list[list[int]], length: int | None) -> None:
    ragged = hr.Ragged.from_lists(rows)
    wide = max(map(len, rows), default=0) if length is None else length
    wanted = [(row + [-1] * wide)[:wide] for row in rows]
    padded = ragged.to_padded(-1, length=length)
    assert padded.tolist() == wanted
    assert (tuple(padded.shape), padded.dtype) == ((len(rows), wide), torch.int64)
    mask = ragged.mask(length)
    assert mask.tolist() == [[place < len(row) for place in range(wide)] for row in rows]
    assert (tuple(mask.shape), mask.dtype) == ((len(rows), wide), torch.bool)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_vectors_keep_their_type_and_width(dtype: torch.dtype) -> None:
    splits = torch.tensor([0, 2, 2, 3])
    values = torch.arange(3 * 2 * 4).view(3, 2, 4).to(dtype)
    padded = hr.Ragged(values, splits).to_padded(7)
    assert (tuple(padded.shape), padded.dtype) == ((3, 2, 2, 4), dtype)
    assert torch.equal(padded[0], values[:2])
    assert torch.equal(padded[2, 0], values[2])
    assert bool((padded[1] == 7).all())
    assert hr.Ragged(values[:0], splits[:1]).to_padded().shape == (0, 0, 2, 4)


def test_gradients_flow_to_the_values_that_were_kept() -> None:
    values = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    splits = torch.tensor([0, 1, 1, 4, 6])

    def padded(given: torch.Tensor) -> torch.Tensor:
        return hr.Ragged(given, splits).to_padded(0.5, length=2).square()

    assert torch.autograd.gradcheck(padded, (values,))
    (grad,) = torch.autograd.grad(padded(values).sum(), values)
    assert not grad[3].any()  # the third of its row
    (grad,) = torch.autograd.grad(hr.Ragged(values, splits).to_padded(0.5).sum(), values)
    assert bool((grad == 1).all())


@pytest.mark.parametrize("rows", CASES)
def test_a_nested_tensor_has_the_rows_and_comes_back(rows: list[list[int]]) -> None:
    ragged = hr.Ragged.from_lists(rows)
    nested = ragged.to_nested()
    assert nested.layout == torch.jagged
    assert [row.tolist() for row in nested.unbind()] == rows
    batch = hr.IdBatch.from_nested({"x": nested})
    assert batch.feature("x").to_lists() == rows
    values = torch.randn(len(ragged.values), 3, requires_grad=True)
    of_vectors = hr.Ragged(values, ragged.row_splits).to_nested()
    (grad,) = torch.autograd.grad((of_vectors * 3).values().sum(), values)  # pyright: ignore[reportAttributeAccessIssue]
    assert bool((grad == 3).all())


def test_what_a_module_gives_is_padded_and_trains() -> None:
    rows = hr.Embeddings([hr.Table("item", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    batch = hr.IdBatch.from_lists({"item": [[1, 2, 3], [], [1]]})
    found = rows(batch)["item"]
    (found.to_padded(length=2) * torch.tensor([1.0, 2.0])).sum().backward()
    entries = rows.table("item").entries(torch.tensor([1, 2, 3]))
    assert entries.rows.tolist() == [[-2.0, -4.0], [-1.0, -2.0], [0.0, 0.0]]


def test_bad_lengths_and_paddings_are_refused() -> None:
    ragged = hr.Ragged.from_lists([[1]])
    with pytest.raises(InputError, match="length is -1"):
        ragged.to_padded(length=-1)
    with pytest.raises(InputError, match=r"padding is 0\.5, which torch.int64 does not hold"):
        ragged.to_padded(0.5)


def test_a_graph_holds_them_without_a_break() -> None:
    torch._dynamo.reset()

    def padded(values: torch.Tensor, splits: torch.Tensor) -> torch.Tensor:
        ragged = hr.Ragged.trusted(values, splits)
        return ragged.to_padded(length=4) + ragged.mask(4).unsqueeze(2)

    run = torch.compile(padded, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in ([1, 2, 0], [0, 0], [5, 1], [3] * 9):
        splits = torch.tensor([0, *lengths]).cumsum(0)
        values = torch.randn(int(splits[-1]), 3)
        assert torch.equal(run(values, splits), padded(values, splits))
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("rows", "dtype", "words"),
    [
        ([[7], ["a"]], torch.int64, r"row 1 has 'a', a str; rows hold numbers.*hr\.id64"),
        (["ab"], torch.int64, r"row 0 has 'a', a str"),
        ([[b"a"]], torch.float32, r"row 0 has b'a', a bytes"),
        ([[1.5]], torch.int64, r"row 0 has 1\.5, a float, which torch\.int64 does not hold"),
        ([[2], [None]], torch.float32, r"row 1 has None, a NoneType"),
        ([[2**63]], torch.int64, r"row 0 has 9223372036854775808; whole numbers lie in"),
        ([[300]], torch.uint8, r"values that torch\.uint8 does not hold"),
    ],
)
def test_what_a_row_cannot_hold_is_named(rows: Any, dtype: torch.dtype, words: str) -> None:
    with pytest.raises(HedgerowError, match=words):
        hr.Ragged.from_lists(rows, dtype)


def test_rows_of_other_types() -> None:
    assert hr.Ragged.from_lists([[1.5], []], torch.float64).to_lists() == [[1.5], []]
    assert hr.Ragged.from_lists([[True, 2**63 - 1]]).to_lists() == [[1, 2**63 - 1]]
    assert hr.Ragged.from_lists([torch.tensor([1, 2])]).to_lists() == [[1, 2]]  # type: ignore[list-item]
