"""Text of the Criteo form: values, salts, files in gzip, and errors that name file and line."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

import hedgerow as hr
from hedgerow.core.errors import FileDamagedError, InputError
from hedgerow.data import criteo_text
from hedgerow.data.criteo_text import STRINGS

# Distinct values of C1 .. C26 in the training part of a published sample.
CARDINALITY = (
    *(79, 252, 1292, 1042, 30, 6, 1164, 39, 2, 908, 926, 1238, 824),
    *(20, 819, 1158, 9, 534, 200, 3, 1203, 6, 12, 728, 32, 553),
)


def line(label: object = 0, numbers: object = ("",) * 13, strings: object = ("",) * 26) -> str:
    return "\t".join(map(str, [label, *numbers, *strings]))  # type: ignore[misc]


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    text = "\n".join(lines) + end
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["day.txt", "day.txt.gz"])
def test_numbers_are_logarithms_and_strings_salted_ids(tmp_path: Path, name: str) -> None:
    numbers = ["3", "-2", "", "0", *["7"] * 9]
    strings = ["68fd1e64", "", "68fd1e64", *["x"] * 23]
    (batch,) = hr.data.criteo(write(tmp_path / name, [line(1, numbers, strings), line()]), 8)
    assert batch.labels.tolist() == [1, 0]
    wanted = [math.log(4), 0, 0, 0, *[math.log(8)] * 9]
    assert batch.dense[0].tolist() == pytest.approx(wanted)
    assert batch.dense[1].tolist() == [0] * 13
    assert batch.ids.names == STRINGS
    assert batch.ids.feature("C1").to_lists() == [[hr.id64("68fd1e64", field="C1")], []]
    assert batch.ids.feature("C2").to_lists() == [[], []]
    assert batch.ids.feature("C3").to_lists() == [[hr.id64("68fd1e64", field="C3")], []]


def test_the_same_strings_in_26_fields_are_13_079_ids(tmp_path: Path) -> None:
    """As many as the sample has (field, value) pairs: own salts, empty values skipped."""
    assert sum(CARDINALITY) == 13_079
    lines = []
    for row in range(max(CARDINALITY) + 5):
        lines.append(line(0, strings=[f"{row:08x}" if row < c else "" for c in CARDINALITY]))
    seen = {name: set[int]() for name in STRINGS}
    for batch in hr.data.criteo(write(tmp_path / "day.txt", lines), 256):
        for name, ids in seen.items():
            ids.update(batch.ids.feature(name).values.tolist())
    assert tuple(len(ids) for ids in seen.values()) == CARDINALITY
    assert len(set().union(*seen.values())) == 13_079


def test_the_last_line_needs_no_end_and_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    for end in ("", "\n", "\r\n"):
        lines = [line(1, strings=["a"] * 26)] * 2
        text = (end or "\n").join(lines) + end
        (tmp_path / "day.txt").write_bytes(text.encode())
        (batch,) = hr.data.criteo(tmp_path / "day.txt", 8)
        assert batch.ids.feature("C26").values.tolist() == [hr.id64("a", field="C26")] * 2


@pytest.mark.parametrize("stop", [0, 1, 5, 9])
def test_a_source_goes_on_exactly_where_another_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    monkeypatch.setattr(criteo_text, "_BLOCK_BYTES", 512)  # several blocks a file
    random = np.random.default_rng(0)
    files = []
    for number in range(2):
        rows = random.integers(0, 50, (40, 39)).tolist()
        lines = [line(r[0] % 2, r[:13], r[13:]) for r in rows]
        files.append(write(tmp_path / f"day{number}.txt", lines))
    whole = hr.data.criteo(files, 7, window_rows=20, seed=2)
    states, batches = [whole.state_dict()], []
    for batch in whole:
        states.append(whole.state_dict())
        batches.append((batch.ids.values.tolist(), batch.dense.tolist(), batch.labels.tolist()))
    resumed = hr.data.criteo(files, 7, window_rows=20, seed=2)
    resumed.load_state_dict(states[stop])
    rest = [(b.ids.values.tolist(), b.dense.tolist(), b.labels.tolist()) for b in resumed]
    assert rest == batches[stop:]
    assert len(batches) == 12


BAD = {
    "short": ("1\t2\t3", "line 3: 3 fields; there must be 40"),
    "blank": ("", "line 3: label is empty"),
    "long": (line() + "\t5", "line 3: 41 fields"),
    "label": (line("click"), "line 3: label is 'click'; it must be a whole number."),
    "no label": (line(""), "line 3: label is empty"),
    "number": (line(0, ["", "1.5", *[""] * 11]), "line 3: I2 is '1.5'"),
    "huge": (line(0, ["9" * 30, *[""] * 12]), "line 3: I1 is '999"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", ["day.txt", "day.txt.gz"])
def test_a_bad_line_is_named(tmp_path: Path, kind: str, name: str) -> None:
    bad, message = BAD[kind]
    file = write(tmp_path / name, [line(), line(1), bad, line()])
    with pytest.raises(InputError, match=f"{name}, {message}"):
        list(hr.data.criteo(file, 2))


@pytest.mark.parametrize(("first", "message"), [(5000, "line 5001: I1 is 'x'")])
def test_a_bad_line_far_into_the_file_has_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, message: str
) -> None:
    monkeypatch.setattr(criteo_text, "_BLOCK_BYTES", 4096)
    lines = [line()] * first + [line(0, ["x", *[""] * 12])]
    with pytest.raises(InputError, match=message):
        list(hr.data.criteo(write(tmp_path / "day.txt", lines), 100))
    lines[-1] = "1\t2"
    with pytest.raises(InputError, match="line 5001: 2 fields"):
        list(hr.data.criteo(write(tmp_path / "day.txt", lines), 100))


def test_empty_and_damaged_files_are_named(tmp_path: Path) -> None:
    for name in ("day.txt", "day.txt.gz"):
        with pytest.raises(InputError, match=f"{name} holds no rows"):
            list(hr.data.criteo(write(tmp_path / name, [], end=""), 2))
    cut = tmp_path / "cut.gz"
    whole = write(cut, [line(i % 2, strings=[f"{i * 7919:x}"] * 26) for i in range(5000)])
    cut.write_bytes(whole.read_bytes()[:2000])
    with pytest.raises(FileDamagedError, match=r"cut.gz cannot be read"):
        list(hr.data.criteo(cut, 2))
    cut.write_bytes(b"no gzip at all")
    with pytest.raises(FileDamagedError, match=r"cut.gz cannot be read"):
        list(hr.data.criteo(cut, 2))
