"""Addresses in files: replaced, broken, gone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hedgerow.core.errors import FileDamagedError, FileMissingError
from hedgerow.discovery.targets import FileAddressBook, FileTargets


def put(path: Path, content: Any) -> None:
    """As a deployment does it: written beside, then renamed into place."""
    beside = path.with_suffix(".new")
    beside.write_text(content if isinstance(content, str) else json.dumps(content))
    os.replace(beside, path)


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    put(path, ["a:1"])
    targets = FileTargets(path)
    assert targets.current() == ["a:1"]
    put(path, ["b:1"])  # as long as before
    assert targets.current() == ["b:1"]
    assert targets.file.counters.snapshot() == {"file_reads": 1}


@pytest.mark.parametrize("broken", ["", "[", "[" * 100_000, '"a:1"', '["a"]', "[1]", "{}", "null"])
def test_broken_content_keeps_the_old_list_and_counts(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "targets.json"
    put(path, ["a:1"])
    targets = FileTargets(path)
    put(path, broken)
    assert targets.current() == ["a:1"]
    assert targets.current() == ["a:1"]
    assert targets.file.counters.read("file_broken") == 1  # one broken file, however often seen
    put(path, ["b:1"])
    assert targets.current() == ["b:1"]


def test_a_file_that_is_gone_keeps_the_old_list(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    put(path, ["a:1"])
    targets = FileTargets(path)
    path.unlink()
    assert targets.current() == ["a:1"]
    assert targets.file.counters.read("file_missing") == 1
    put(path, ["b:1"])
    assert targets.current() == ["b:1"]


def test_the_first_file_must_be_good(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match=r"targets\.json"):
        FileTargets(tmp_path / "targets.json")
    put(tmp_path / "targets.json", "[")
    with pytest.raises(FileDamagedError, match=r"targets\.json"):
        FileTargets(tmp_path / "targets.json")


def test_a_book_has_lists_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    put(path, {"ps:0": ["a:1"], "entry:0": ["b:1"], "m:ps_1": ["c:1"]})
    book = FileAddressBook(path)
    assert book.addresses("ps") == {"ps:0": ["a:1"], "m:ps_1": ["c:1"]}
    put(path, [])
    assert book.addresses("entry") == {"entry:0": ["b:1"]}
    assert book.file.counters.read("file_broken") == 1
