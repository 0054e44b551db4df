"""The routing vectors: one test a case."""

from __future__ import annotations

import pytest

from . import routing_checkpoint  # noqa: F401  (it registers handlers)
from .routing_area import AREA
from .runner import Case


@pytest.mark.parametrize("case", AREA.cases(), ids=str)
def test_case(case: Case) -> None:
    case.run()
