"""The page about tiers explains every counter that a table has."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.tiers.tier_tables import MODES

from .test_in_file import SMALL, in_file

PAGE = (Path(__file__).parents[2] / "docs/guides/tiers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", MODES)
def test_every_counter_is_explained(mode: str) -> None:
    counters = PAGE.partition("## Counters")[2].partition("## Limits")[0]
    names = " ".join(word for line in counters.splitlines() for word in line.split("|")[1:2])
    found = in_file(mode, 4, 2**12)(SMALL).stats()
    assert [name for name in found if f"`{name}`" not in names] == []
