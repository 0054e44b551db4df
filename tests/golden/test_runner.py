"""The runner itself: nothing unknown slips through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .runner import Area, Case


def _area(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, Any]) -> Area:
    folder = tmp_path / "demo"
    folder.mkdir()
    for name, document in files.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    monkeypatch.setenv("HEDGEROW_GOLDEN", str(tmp_path))
    area = Area(
        "demo",
        file_values={"known": {"note"}},
        later_files={"later"},
        later_sections={("known", "later")},
    )

    @area.handles("known", "cases")
    @area.handles("known", "single")
    def check(case: Case) -> None:
        case.take(("x",), ("id",))

    area.handles("known", "scheme", scheme=True)(lambda case: None)
    return area


def _labels(area: Area) -> list[str]:
    return [str(case) for case in area.cases()]


def test_every_element_object_and_scheme_is_one_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        "note": "n",
        "cases": [{"x": 1}, {"x": 2, "id": "two"}],
        "single": {"x": 3},
        "scheme": [[1, 2], [3]],
        "later": [{"anything": 1}],
    }
    area = _area(tmp_path, monkeypatch, {"known": known, "later": {"anything": [1]}})
    assert _labels(area) == [
        "known::cases::0",
        "known::cases::two",
        "known::single::single",
        "known::scheme::scheme",
    ]
    for case in area.cases():
        case.run()


@pytest.mark.parametrize(
    "files",
    [
        {"stranger": {"cases": [{"x": 1}]}},
        {"known": {"strange": [{"x": 1}]}},
        {"known": {"cases": [{"x": 1, "y": 2}]}},
        {"known": {"cases": [{}]}},
        {},
    ],
    ids=["file", "section", "key", "missing key", "empty folder"],
)
def test_what_nobody_knows_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, Any]
) -> None:
    (case,) = _area(tmp_path, monkeypatch, files).cases()
    with pytest.raises(AssertionError):
        case.run()


def test_a_file_that_is_a_list_has_one_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = _area(tmp_path, monkeypatch, {"known": [{"x": 1}, {"x": 2, "id": "two"}]})
    assert _labels(area) == ["known::cases::0", "known::cases::two"]
    assert [case.value["x"] for case in area.cases()] == [1, 2]


def test_an_absent_section_gives_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    area = _area(tmp_path, monkeypatch, {"known": {"note": "n", "cases": []}})
    assert area.cases() == []
