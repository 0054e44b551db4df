"""The planner vectors: one test a case."""

from __future__ import annotations

import pytest

from . import planner_model, planner_solve  # noqa: F401  (they register handlers)
from .planner_area import AREA
from .runner import Case


@pytest.mark.parametrize("case", AREA.cases(), ids=str)
def test_case(case: Case) -> None:
    case.run()
