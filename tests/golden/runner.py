"""Turns every case of a folder of golden vectors into one test.

A case is each element of every top-level list of objects; every other top-level object is one case.
A file that is a list itself has one section, `cases`.
Scalars and plain number lists belong to their file, unless the area names them as a scheme. A file,
a section or a key that nobody knows is a failing test, never a skipped one; what a later issue
brings is listed by name. The folder is `tests/golden`, or `HEDGEROW_GOLDEN` with the same areas.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Handler = Callable[["Case"], None]


def golden_folder() -> Path:
    return Path(os.environ.get("HEDGEROW_GOLDEN", Path(__file__).parent))


@dataclass(frozen=True)
class Case:
    """One case: where it stands, its value, and the whole file for what the file shares."""

    file: str
    section: str
    label: str
    value: Any
    document: Mapping[str, Any]
    run_with: Handler

    def __str__(self) -> str:
        return f"{self.file}::{self.section}::{self.label}"

    def run(self) -> None:
        self.run_with(self)

    def take(self, required: Iterable[str] = (), optional: Iterable[str] = ()) -> dict[str, Any]:
        """The value, after checking its keys: an unknown or missing one fails the case."""
        return take(self.value, required, optional)


def take(
    value: Mapping[str, Any], required: Iterable[str] = (), optional: Iterable[str] = ()
) -> dict[str, Any]:
    required, known = set(required), set(required) | set(optional)
    assert set(value) <= known, f"unknown keys: {sorted(set(value) - known)}"
    assert required <= set(value), f"missing keys: {sorted(required - set(value))}"
    return dict(value)


@dataclass
class Area:
    """One folder of vectors and the handlers of its sections."""

    name: str
    handlers: dict[tuple[str, str], Handler] = field(default_factory=dict)
    schemes: set[tuple[str, str]] = field(default_factory=set)
    file_values: dict[str, set[str]] = field(default_factory=dict)
    later_files: set[str] = field(default_factory=set)
    later_sections: set[tuple[str, str]] = field(default_factory=set)
    later_cases: Callable[[str, str, Any], bool] = lambda file, section, value: False

    def handles(self, file: str, section: str, *, scheme: bool = False) -> Callable[..., Handler]:
        """Registers a handler; `scheme` marks a plain list that is one case."""

        def register(handler: Handler) -> Handler:
            self.handlers[file, section] = handler
            if scheme:
                self.schemes.add((file, section))
            return handler

        return register

    def cases(self) -> list[Case]:
        """All cases of the folder, plus one failing case for everything unknown."""
        folder = golden_folder() / self.name
        files = sorted(folder.glob("*.json"))
        if not files:
            return [self._failing("", "", f"no golden files in {folder}")]
        return [case for path in files for case in self._file_cases(path)]

    def _file_cases(self, path: Path) -> Iterator[Case]:
        file = path.stem
        if file in self.later_files:
            return
        document = json.loads(path.read_text())
        if isinstance(document, list):
            document = {"cases": document}
        for section, value in document.items():
            yield from self._section_cases(file, section, value, document)

    def _section_cases(
        self, file: str, section: str, value: Any, document: Mapping[str, Any]
    ) -> Iterator[Case]:
        if (file, section) in self.later_sections:
            return
        handler = self.handlers.get((file, section))
        if handler is None:
            if section not in self.file_values.get(file, set()):
                yield self._failing(file, section, f"no handler for {file}::{section}")
            return
        listed = isinstance(value, list) and (file, section) not in self.schemes
        elements = list(enumerate(value)) if listed else [(None, value)]
        for index, element in elements:
            if self.later_cases(file, section, element):
                continue
            label = _label(element, index)
            label = section if label is None else str(label)
            yield Case(file, section, label, element, document, handler)

    def _failing(self, file: str, section: str, why: str) -> Case:
        def fail(case: Case) -> None:
            raise AssertionError(why)

        return Case(file or self.name, section or "folder", "unknown", None, {}, fail)


def _label(element: Any, index: int | None) -> object:
    """What a case calls itself, or its place."""
    if not isinstance(element, dict):
        return index
    return element.get("id", element["name"] if "origin" in element else index)
