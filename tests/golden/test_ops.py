"""The vectors of the ops: one test a case."""

from __future__ import annotations

import pytest

from . import ops_gather, ops_ids  # noqa: F401  (they register handlers)
from .ops_area import AREA
from .runner import Case


@pytest.mark.parametrize("case", AREA.cases(), ids=str)
def test_case(case: Case) -> None:
    case.run()
