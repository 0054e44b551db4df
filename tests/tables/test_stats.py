"""`hr.stats`: what a table holds and has done."""

from __future__ import annotations

import json

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import DtypeError
from tests.support import make_table


def test_stats_name_the_table_and_add_up() -> None:
    table = make_table(hr.Adagrad(lr=0.1), dim=4, name="item", not_finite="drop")
    ids = torch.arange(1000)
    table.apply_gradients(ids, torch.ones(1000, 4))
    table.erase(ids[:10])
    table.assign(torch.tensor([5000]), torch.full((1, 4), torch.nan))
    seen = hr.stats(table)["item"]
    assert seen["name"] == "item"
    assert seen["rows"] == 990
    assert (seen["inserted"], seen["refused"], seen["dropped"], seen["erased"]) == (1000, 0, 1, 10)
    assert seen["row_bytes"] == 990 * (4 * 8 + 8)
    assert seen["uncompressed_bytes"] == 990 * 16
    parts = (seen[f"{part}_bytes"] for part in ("index", "row", "slack", "other", "output"))
    assert seen["total_bytes"] == sum(int(part) for part in parts) == table.memory().total_bytes
    assert 0 < float(seen["load_factor"]) <= 1
    assert int(seen["longest_search"]) >= 1


def test_stats_are_plain_values() -> None:
    seen = hr.stats(make_table())
    assert json.loads(json.dumps(seen)) == seen


def test_stats_of_something_else_is_refused() -> None:
    with pytest.raises(DtypeError, match="stats of a dict; pass a HostTable"):
        hr.stats({})  # pyright: ignore[reportArgumentType]
