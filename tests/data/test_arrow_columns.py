"""Ids of strings by the core: the bits of `id64`, whatever array they stand in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hedgerow as hr
from hedgerow.core.id_columns import hash_one_by_one, ragged_of_column
from hedgerow.data.arrow_columns import hash_text


@given(st.lists(st.text(max_size=40), max_size=12), st.text(max_size=5), st.integers(0, 12))
def test_hashes_are_id64_also_of_a_slice(texts: list[str], field: str, start: int) -> None:
    wanted = [hr.id64(text, field=field) for text in texts]
    for kind in (pa.string(), pa.large_string()):
        array = pa.array(texts, kind)
        assert hash_text(array, field).tolist() == wanted
        assert hash_text(array.slice(start), field).tolist() == wanted[start:]
    assert hash_one_by_one(pa.array(texts, pa.string()), field).tolist() == wanted


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_bytes_hash_as_bytes(values: list[bytes]) -> None:
    wanted = [hr.id64(value, field="f") for value in values]
    for kind in (pa.binary(), pa.large_binary()):
        assert hash_text(pa.array(values, kind), "f").tolist() == wanted


def test_144_242_distinct_strings_are_as_many_ids() -> None:
    """The size of a published list of book ids, in their form: ten digits and capitals."""
    random = np.random.default_rng(0)
    letters = np.array(list("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    names = np.unique(["".join(row) for row in letters[random.integers(0, 36, (150_000, 10))]])
    names = names[:144_242]
    assert len(names) == 144_242
    assert len(np.unique(hash_text(pa.array(names), "book"))) == 144_242


@pytest.mark.parametrize("hasher", [hash_text, hash_one_by_one])
def test_rows_of_lists_keep_their_borders(hasher: object) -> None:
    column = pa.chunked_array([[["a"], None], [["b", "a"], []]])
    rows = ragged_of_column("f", column, hasher).to_lists()  # type: ignore[arg-type]
    a, b = hr.id64("a", field="f"), hr.id64("b", field="f")
    assert rows == [[a], [], [b, a], []]
