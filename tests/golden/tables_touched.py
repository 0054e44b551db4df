"""Vectors of touched keys: Monolith's overflow as a named option, our rule beside it."""

from __future__ import annotations

import torch

from hedgerow.tables.changes import DEFAULT_CAPACITY
from hedgerow.tables.host import HostTable
from hedgerow.tables.optimizers import Sgd

from .runner import Case
from .tables_area import AREA, one_segment


def _touch_one_by_one(table: HostTable, keys: list[int]) -> None:
    for key in keys:
        table.apply_gradients(torch.tensor([key]), torch.ones(1, 1))


@AREA.handles("touched", "upstream")
def original_rule(case: Case) -> None:
    c = case.take(("capacity", "dropped", "stolen"), ("inserted", "insert", "stolen_again"))
    assert ("inserted" in c) != ("insert" in c), "either a count of keys or the keys"
    keys = c["insert"] if "insert" in c else list(range(c["inserted"]))
    table = one_segment(Sgd(), 1)
    touched = table.touched("golden", capacity=c["capacity"], overflow="forget")
    ours = table.touched("ours", capacity=c["capacity"])
    _touch_one_by_one(table, keys)
    assert touched.size() == len(c["stolen"])
    taken = touched.take()
    assert sorted(taken.ids.tolist()) == sorted(c["stolen"])
    assert taken.forgotten == c["dropped"]
    assert not taken.whole_table
    again = touched.take()
    assert sorted(again.ids.tolist()) == sorted(c.get("stolen_again", []))
    assert again.forgotten == 0
    assert ours.take().whole_table == (len(set(keys)) > c["capacity"])


@AREA.handles("touched", "default_capacity")
def default_capacity(case: Case) -> None:
    assert case.value == DEFAULT_CAPACITY
    assert one_segment(Sgd(), 1).touched("golden").settings.capacity == case.value


@AREA.handles("touched", "product_rule")
def product_rule(case: Case) -> None:
    """A sentence, and what it asks for: an overflow is reported, and everything is sent anew."""
    assert isinstance(case.value, str)
    for capacity in (1, 5, 64):
        table = one_segment(Sgd(), 1)
        touched = table.touched("golden", capacity=capacity)
        _touch_one_by_one(table, list(range(capacity)))
        within = touched.take()
        assert sorted(within.ids.tolist()) == list(range(capacity))
        assert not within.whole_table
        _touch_one_by_one(table, list(range(capacity + 1)))
        beyond = touched.take()
        assert beyond.whole_table
        assert len(beyond) == 0
        assert beyond.forgotten == 0
        assert touched.overflows() == 1
