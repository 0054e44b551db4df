"""Vectors of Monolith's touched keys: what a step finds, and what an overflow drops."""

from __future__ import annotations

from typing import Any

import torch

from hedgerow.tables.optimizers import Sgd

from .runner import Case, take
from .serving_area import AREA
from .tables_area import one_segment


def _keys(given: Any) -> list[int]:
    if isinstance(given, dict):
        first, last = take(given, ("range",))["range"]
        return list(range(first, last))
    return given


@AREA.handles("touched_keys", "cases")
def _operations(case: Case) -> None:
    c = case.take(("name", "capacity", "operations", "expect"))
    table = one_segment(Sgd(), 1)
    touched = table.touched("golden", capacity=c["capacity"], overflow="forget")
    dropped = 0  # by the inserts since the last take, which tells it
    assert len(c["operations"]) == len(c["expect"])
    for operation, expected in zip(c["operations"], c["expect"], strict=True):
        if operation == "steal":
            wanted = take(expected, ("steal",))["steal"]
            taken = touched.take()
            assert sorted(taken.ids.tolist()) == sorted(wanted)
            assert taken.forgotten == dropped
            assert not taken.whole_table
            dropped = 0
        else:
            inserted = _keys(take(operation, ("insert",))["insert"])
            wanted = take(expected, ("insert", "dropped", "size"))
            for key in inserted:  # one by one: Monolith looks at the room before each
                table.apply_gradients(torch.tensor([key]), torch.ones(1, 1))
            dropped += wanted["dropped"]
            assert len(inserted) == wanted["insert"]
            assert touched.size() == wanted["size"]
    assert touched.take().forgotten == dropped
