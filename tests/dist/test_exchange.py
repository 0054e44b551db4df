"""The exchange between real processes: every option, a rank that is late, a rank that dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from .exchange_work import work
from .gloo_ranks import run_ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_tables_over_processes(ranks: int, tmp_path: Path) -> None:
    said = run_ranks(ranks, work, tmp_path, may_die=True)
    assert said == [""] * (ranks - 1) + ["died"]
