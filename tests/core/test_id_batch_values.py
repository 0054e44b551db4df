"""What users pass in place of ids: the error names feature, value and what to write instead."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import ConfigError, DtypeError, HedgerowError, InputError


@pytest.mark.parametrize("module", [hr.EmbeddingBags, hr.Embeddings])
@pytest.mark.parametrize("given", [torch.tensor([1, 2]), {"user": torch.tensor([1])}, [[1]]])
def test_a_module_called_without_an_id_batch_says_how_to_make_one(module: Any, given: Any) -> None:
    model = module([hr.Table("user", 2)])
    with pytest.raises(TypeError, match="it takes an IdBatch") as error:
        model(given)
    assert isinstance(error.value, DtypeError)
    for part in (module.__name__, type(given).__name__, "hr.IdBatch.from_dict({'user': ids})"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("rows", "kind", "told"),
    [
        ([[7], ["Zürich"]], DtypeError, "sample 1 has 'Zürich', a str"),
        ([["Zürich"]], DtypeError, "hr.id64('Zürich', field='city')"),
        (["Zürich"], DtypeError, "sample 0 has 'Zürich', a str"),
        ([[], [b"x"]], DtypeError, "sample 1 has b'x', a bytes"),
        ([[1, None]], DtypeError, "has None, a NoneType; ids are whole numbers. An absent id"),
        ([[1], [1.5]], DtypeError, "sample 1 has 1.5, a float"),
        ([[2**63]], InputError, "sample 0 has 9223372036854775808; an id lies in"),
        ([7, 8], DtypeError, "sample 0 is 7; it must be a list of ids, such as [7]"),
    ],
)
def test_what_is_no_list_of_ids_is_named(rows: Any, kind: type[HedgerowError], told: str) -> None:
    with pytest.raises(kind, match=r"feature 'city' of sample \d") as error:
        hr.IdBatch.from_lists({"user": [[1]] * len(rows), "city": rows})
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([["a"], [1.0, 2.0]], "weights of feature 'city' are [['a'], [1.0, 2.0]]"),
        ([1.0, 2.0, 3.0], "weights of feature 'city' are [1.0, 2.0, 3.0]"),
        ([[1.0, 2.0], [3.0]], "sample 0 has 1 ids and 2 weights"),  # as many in all
    ],
)
def test_weights_have_the_form_of_the_ids(weights: Any, told: str) -> None:
    with pytest.raises(HedgerowError) as error:
        hr.IdBatch.from_lists({"city": [[7], [8, 9]]}, {"city": weights})
    assert told in str(error.value)


def test_features_without_names_are_named_as_the_error() -> None:
    nameless: Any = [[7], [8]]
    for make in (hr.IdBatch.from_lists, hr.IdBatch.from_dict):
        with pytest.raises(DtypeError, match="features is a list; pass a dict with the name"):
            make(nameless)
    with pytest.raises(DtypeError, match="feature 'city' is 7; give one list of ids per sample"):
        hr.IdBatch.from_lists({"city": 7})  # pyright: ignore[reportArgumentType]


def test_all_that_is_a_list_of_ids_is_taken() -> None:
    rows: Any = [[], (1, -1), np.array([2**63 - 1]), torch.tensor([-(2**63)]), iter([5])]
    batch = hr.IdBatch.from_lists({"user": iter(rows)})
    assert batch.feature("user").to_lists() == [[], [1, -1], [2**63 - 1], [-(2**63)], [5]]
    assert hr.IdBatch.from_lists({"user": [[], []]}).samples == 2


@pytest.mark.parametrize("name", ["optimizer", "init", "compressor"])
def test_an_error_of_a_segment_lists_each_name_once(name: str) -> None:
    given: Any = {name: "adagrad"}
    with pytest.raises(ConfigError, match=f"Segment.{name} is 'adagrad'") as error:
        hr.Segment(4, **given)
    listed = re.search(r"one of (.*), as in (\S+)=hr\.", str(error.value))
    assert listed is not None
    names = listed[1].split(", ")
    assert len(names) == len(set(names)) > 3
    assert listed[2] == name
