"""Batches of ids: every way to make one, and what is done to them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hedgerow as hr
from hedgerow.core.errors import DtypeError, InputError, UnknownNameError

IDS = st.integers(-(2**63), 2**63 - 1)
BAGS = st.lists(st.lists(IDS, max_size=4), min_size=3, max_size=3)


def _lists(batch: hr.IdBatch) -> dict[str, list[list[int]]]:
    return {name: batch.feature(name).to_lists() for name in batch.names}


@given(st.dictionaries(st.text(min_size=1), BAGS, min_size=1, max_size=4))
def test_lists_come_back_and_parts_are_joined(features: dict[str, list[list[int]]]) -> None:
    batch = hr.IdBatch.from_lists(features)
    assert _lists(batch) == features
    assert batch.samples == 3
    names = list(features)[::-1]
    assert _lists(batch.select(names)) == {name: features[name] for name in names}
    twice = hr.IdBatch.concat([batch, batch])
    assert _lists(twice) == {name: bags + bags for name, bags in features.items()}


@given(BAGS, BAGS)
def test_weights_stay_with_their_ids(one: list[list[int]], two: list[list[int]]) -> None:
    features = {"a": one, "b": two}
    weights = {n: [[float(i) for i, _ in enumerate(bag)] for bag in f] for n, f in features.items()}
    batch = hr.IdBatch.from_lists(features, weights)
    for picked in (batch.select(["b"]), hr.IdBatch.concat([batch]).select(["b"])):
        flat = [w for bag in weights["b"] for w in bag]
        found = picked.weights_of("b")
        assert found is not None
        assert found.tolist() == flat
    only_a = hr.IdBatch.from_dict(
        {"a": batch.feature("a"), "b": batch.feature("b")},
        {"a": torch.full((len(batch.feature("a").values),), 2.0)},
    )
    assert only_a.weights is not None
    assert set(only_a.weights_of("b").tolist()) <= {1.0}  # pyright: ignore[reportOptionalMemberAccess]


def test_a_nested_and_a_padded_batch_are_the_lists() -> None:
    rows = [[5, 6], [], [7]]
    nested = torch.nested.nested_tensor(
        [torch.tensor(row, dtype=torch.int64) for row in rows], layout=torch.jagged
    )
    padded = torch.tensor([[5, 6], [0, 0], [7, 0]])
    assert _lists(hr.IdBatch.from_nested({"x": nested})) == {"x": rows}
    assert _lists(hr.IdBatch.from_padded({"x": padded}, padding=0)) == {"x": rows}
    with pytest.raises(InputError, match="no jagged nested tensor"):
        hr.IdBatch.from_nested({"x": padded})


class _Kjt:
    """What TorchRec's class offers."""

    def __init__(self, weights: torch.Tensor | None) -> None:
        self._weights = weights

    def keys(self) -> list[str]:
        return ["a", "b"]

    def values(self) -> torch.Tensor:
        return torch.tensor([1, 2, 3])

    def offsets(self) -> torch.Tensor:
        return torch.tensor([0, 1, 1, 2, 3], dtype=torch.int32)

    def weights_or_none(self) -> torch.Tensor | None:
        return self._weights


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)])
def test_a_keyed_jagged_tensor_is_taken(weights: torch.Tensor | None) -> None:
    batch = hr.IdBatch.from_kjt(_Kjt(weights))
    assert _lists(batch) == {"a": [[1], []], "b": [[2], [3]]}
    found = batch.weights_of("b")
    assert (None if found is None else found.tolist()) == (None if weights is None else [2.0, 3.0])


def test_arrow_columns_of_numbers_strings_and_lists() -> None:
    table = pa.table(
        {
            "user": pa.array([7, None, 2**63 + 1], pa.uint64()),
            "city": pa.array(["rom", "", None]),
            "tags": pa.array([["a", "b"], None, []], pa.list_(pa.string())),
            "seen": pa.array([[1, 2], [], [3]], pa.large_list(pa.int32())),
            "price": pa.array([1.0, 2.0, 3.0]),
        }
    )
    batch = hr.IdBatch.from_arrow(table, ["user", "city", "tags", "seen"])
    assert _lists(batch) == {
        "user": [[7], [], [2**63 + 1 - 2**64]],
        "city": [[hr.id64("rom", "city")], [hr.id64("", "city")], []],
        "tags": [[hr.id64("a", "tags"), hr.id64("b", "tags")], [], []],
        "seen": [[1, 2], [], [3]],
    }
    assert _lists(hr.IdBatch.from_arrow(table.slice(2, 0), ["seen"])) == {"seen": []}
    with pytest.raises(DtypeError, match="'price' holds double"):
        hr.IdBatch.from_arrow(table, ["price"])
    with pytest.raises(UnknownNameError, match="usr"):
        hr.IdBatch.from_arrow(table, ["usr"])
    with pytest.raises(DtypeError, match="nulls"):
        hr.IdBatch.from_arrow(pa.table({"x": [[1, None]]}))


def _wrong(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_what_does_not_fit_is_refused() -> None:
    one = hr.IdBatch.from_lists({"a": [[1]]})
    other = hr.IdBatch.from_lists({"b": [[1]]})
    _wrong(lambda: hr.IdBatch.concat([]), InputError, "no batches")
    _wrong(lambda: hr.IdBatch.concat([one, other]), InputError, "batches differ")
    _wrong(lambda: one.select(["c"]), UnknownNameError, "unknown feature 'c'")
    _wrong(lambda: hr.IdBatch.from_dict({"a": torch.tensor([1.0])}), DtypeError, "a has dtype")
    _wrong(
        lambda: hr.IdBatch.from_lists({"a": [[1]]}, {"z": [[1.0]]}),
        UnknownNameError,
        "unknown feature 'z'",
    )
    _wrong(
        lambda: hr.IdBatch.from_lists({"a": [[1]]}, {"a": [[1.0, 2.0]]}),
        InputError,
        "weights",
    )


def test_a_batch_moves_as_a_whole() -> None:
    batch = hr.IdBatch.from_lists({"a": [[1], [2, 3]]}, {"a": [[1.0], [2.0, 3.0]]})
    moved = batch.to("cpu", non_blocking=True)
    assert (moved.names, _lists(moved)) == (batch.names, _lists(batch))
    assert torch.equal(moved.weights, batch.weights)  # pyright: ignore[reportArgumentType]
