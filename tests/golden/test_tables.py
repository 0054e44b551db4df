"""The table vectors: one test a case."""

from __future__ import annotations

import pytest

from . import (  # noqa: F401  (they register handlers)
    tables_distribution,
    tables_eviction,
    tables_factory,
    tables_filters,
    tables_optimizers,
    tables_restore,
    tables_rows,
    tables_servers,
    tables_sharding,
    tables_touched,
    tables_values,
)
from .runner import Case
from .tables_area import AREA


@pytest.mark.parametrize("case", AREA.cases(), ids=str)
def test_case(case: Case) -> None:
    case.run()
