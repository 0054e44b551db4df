"""The serving vectors: one test a case."""

from __future__ import annotations

import pytest

from . import (  # noqa: F401  (they register handlers)
    serving_discovery,
    serving_launch,
    serving_push,
    serving_touched,
    serving_wire,
)
from .runner import Case
from .serving_area import AREA


@pytest.mark.parametrize("case", AREA.cases(), ids=str)
def test_case(case: Case) -> None:
    case.run()
