"""Logs of JSON lines: every line at once, and a resumed log that equals the unbroken one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import FileDamagedError
from hedgerow.train.events import Event, JsonLines, read_events


def _event(step: int, kind: str = "train", **values: float) -> dict[str, float | int | str]:
    return {"kind": kind, "step": step, "samples": 64 * step, "seconds": 0.5 * step, **values}


_RUN = [
    _event(1, loss=0.7),
    _event(2, loss=0.6),
    _event(2, "eval", auc=0.6),
    _event(2, "checkpoint"),
    _event(3, loss=0.5),
    _event(4, loss=0.4),
    _event(4, "end"),
]


def _write(path: Path, events: list[dict[str, float | int | str]], kept: int | None = None) -> None:
    log = JsonLines(path, kept=kept)
    for event in events:
        log.write(event)
    log.close()


def test_each_event_is_a_line_that_others_see_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "log.jsonl"
    log = JsonLines(path)
    for number, event in enumerate(_RUN, start=1):
        log.write(event)
        assert [json.loads(line) for line in path.read_text().splitlines()] == _RUN[:number]
    log.close()
    log.close()
    assert read_events(path) == _RUN


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    event: Event = {"kind": "eval", "step": 1, "auc": math.nan, "ne": math.inf, "path": "ü\n"}
    log = JsonLines(tmp_path / "log")
    log.write(event)
    log.close()
    line = (tmp_path / "log").read_text()
    assert line.count("\n") == 1
    assert json.loads(line) == {"kind": "eval", "step": 1, "auc": None, "ne": None, "path": "ü\n"}
    (back,) = read_events(tmp_path / "log")
    assert math.isnan(float(back["auc"]))


@given(cut=st.integers(0, 1000), lost=st.booleans())
def test_a_resumed_log_equals_the_unbroken_one_wherever_it_was_torn(
    tmp_path_factory: pytest.TempPathFactory, cut: int, lost: bool
) -> None:
    folder = tmp_path_factory.mktemp("log")
    _write(folder / "unbroken", _RUN)
    whole = (folder / "unbroken").read_bytes()
    saved = whole.index(b'"step": 3') - len(b'{"kind": "train", ')  # all of the checkpoint's step
    torn = whole[: saved + cut] + (b"\0\0\0" if lost and cut < len(whole) - saved else b"")
    (folder / "torn").write_bytes(torn)
    _write(folder / "torn", _RUN[4:], kept=4)
    assert (folder / "torn").read_bytes() == whole


@given(cut=st.integers(0, 150))
def test_a_tear_before_the_checkpoint_keeps_whole_events_only(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    _write(path, _RUN[:3])
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    whole = sum(cut >= end for end in _ends(data))  # the brace is enough, the line's end is not
    _write(path, [_event(9)], kept=8)
    assert read_events(path) == [*_RUN[:whole], _event(9)]
    assert path.read_bytes().count(b"\n") == whole + 1


def _ends(data: bytes) -> list[int]:
    return [at for at, byte in enumerate(data) if byte == ord("\n")]


def test_a_new_job_starts_an_empty_log_and_a_missing_one_is_made(tmp_path: Path) -> None:
    _write(tmp_path / "log", _RUN)
    _write(tmp_path / "log", _RUN[:1])
    assert read_events(tmp_path / "log") == _RUN[:1]
    _write(tmp_path / "other", _RUN[4:], kept=4)
    assert read_events(tmp_path / "other") == _RUN[4:]


def test_a_job_that_ended_and_goes_on_has_not_ended(tmp_path: Path) -> None:
    _write(tmp_path / "log", _RUN)
    _write(tmp_path / "log", [_event(5)], kept=6)
    assert read_events(tmp_path / "log") == [*_RUN[:-1], _event(5)]


@pytest.mark.parametrize("line", [b"not json", b"[1]", b'{"kind": "train"}', b"\xff\xfe", b""])
def test_damage_inside_is_named_and_the_file_left_alone(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "log"
    _write(path, _RUN[:2])
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first + b"\n" + line + b"\n" + second + b"\n")
    before = path.read_bytes()
    with pytest.raises(FileDamagedError, match="log is damaged: line 2 is no event"):
        JsonLines(path, kept=2)
    with pytest.raises(FileDamagedError, match="line 2"):
        read_events(path)
    assert path.read_bytes() == before


def test_a_line_that_is_nested_deeply_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("[" * 100_000 + "\n" + '{"kind": "train", "step": 1}\n')
    with pytest.raises(FileDamagedError, match="line 1 is no event"):
        read_events(path)
