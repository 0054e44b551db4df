"""The door of the combiners: Monolith's names and order of arguments."""

from __future__ import annotations

import inspect

import pytest

from hedgerow.core.ids import Ragged
from hedgerow.monolith import embedding_combiners as combiners


@pytest.mark.parametrize("name", ["Combiner", "ReduceSum", "ReduceMean", "FirstN"])
def test_arguments_have_monolith_names_and_order(name: str) -> None:
    parameters = inspect.signature(getattr(combiners, name).combine).parameters
    assert list(parameters) == ["self", "key", "embedding", "name"]
    assert parameters["name"].default is None


def test_a_sequence_and_its_length() -> None:
    first = combiners.FirstN(seq_length=2)
    assert isinstance(first, combiners.Combiner)
    assert first.max_seq_length == 2
    assert first.combine(Ragged.from_lists([[1]]), [[4.0]], "first").tolist() == [[[4.0], [0.0]]]
