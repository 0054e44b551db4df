"""The vectors of the ops: one test a case."""

from __future__ import annotations

import pytest

from . import (  # noqa: F401  (they register handlers)
    ops_gather,
    ops_ids,
    ops_layout,
    ops_reduce,
    ops_split,
)
from .ops_area import AREA
from .runner import Case


@pytest.mark.parametrize("case", AREA.cases(), ids=str)
def test_case(case: Case) -> None:
    case.run()
