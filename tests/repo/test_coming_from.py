"""The tables of names in docs/coming-from: every place that they name is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("coming-from/monolith.md", "coming-from/dynamicemb.md")
DOORS = (
    "distribution_ops",
    "distributed_ps_factory",
    "distributed_serving_ops",
    "distribution_utils",
    "embedding_combiners",
)
PLACE = re.compile(r"`((?:hr|hedgerow)\.[\w.]+)`")


def rows(page: str) -> list[list[str]]:
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[1] != "here"]


NAMED = sorted({place for page in PAGES for row in rows(page) for place in PLACE.findall(row[1])})
MENTIONED = sorted(
    {place for page in PAGES for place in PLACE.findall((DOCS / page).read_text())} - set(NAMED)
)


def found(place: str) -> Any:
    parts = place.replace("hr.", "hedgerow.", 1).split(".") if place.startswith("hr.") else None
    parts = parts or place.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            value = getattr(value, name)
        return value
    raise AssertionError(f"nothing of {place} can be imported")


@pytest.mark.parametrize("place", [*NAMED, *MENTIONED])
def test_a_named_place_is_there(place: str) -> None:
    assert found(place) is not None


@pytest.mark.parametrize("page", PAGES)
def test_a_row_has_three_cells_and_a_place_or_a_reason(page: str) -> None:
    for row in rows(page):
        assert len(row) == 3, row
        if row[1] == "–":
            assert row[2], f"{row[0]} is not offered, and no reason is given"
        else:
            assert PLACE.fullmatch(row[1]), row


@pytest.mark.parametrize("door", DOORS)
def test_every_name_of_a_door_has_its_row(door: str) -> None:
    module = importlib.import_module(f"hedgerow.monolith.{door}")
    told = set(NAMED)
    missing = [name for name in module.__all__ if f"hedgerow.monolith.{door}.{name}" not in told]
    assert not missing
