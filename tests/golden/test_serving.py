"""The serving vectors: one test a case."""

from __future__ import annotations

import pytest

from . import serving_launch  # noqa: F401  (it registers handlers)
from .runner import Case
from .serving_area import AREA


@pytest.mark.parametrize("case", AREA.cases(), ids=str)
def test_case(case: Case) -> None:
    case.run()
