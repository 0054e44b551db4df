"""The routing vectors: one test a case."""

from __future__ import annotations

import pytest

from . import (  # noqa: F401  (they register handlers)
    routing_bucketize,
    routing_checkpoint,
    routing_owners,
)
from .routing_area import AREA
from .runner import Case


@pytest.mark.parametrize("case", AREA.cases(), ids=str)
def test_case(case: Case) -> None:
    case.run()
