"""The table vectors: one test a case."""

from __future__ import annotations

import pytest

from . import (  # (they register handlers)
    tables_optimizers,  # noqa: F401
    tables_restore,  # noqa: F401
    tables_rows,  # noqa: F401
    tables_values,  # noqa: F401
)
from .runner import Case
from .tables_area import AREA


@pytest.mark.parametrize("case", AREA.cases(), ids=str)
def test_case(case: Case) -> None:
    case.run()
