"""Examples do what they promise, at small sizes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_fresher_replicas_answer_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a sync each second, each minute, never: in this order, and by more than chance."""
    sizes = ["--seconds", "90", "--window", "30", "--samples", "1024", "--warm-up", "100"]
    monkeypatch.setattr(sys, "argv", ["realtime.py", "--out", str(tmp_path), *sizes])
    runpy.run_path(str(EXAMPLES / "realtime.py"), run_name="__main__")
    told = capsys.readouterr().out
    head, *lines = told.splitlines()
    assert head.split("  ")[-1].strip() == "no sync"
    assert [line.split()[0] for line in lines] == ["30", "60", "90", "mean"]
    every_second, every_minute, never = map(float, lines[2].split()[1:])
    assert every_second > every_minute + 0.01
    assert every_minute > never + 0.01
    assert (tmp_path / "auc.txt").read_text() == told
    assert (tmp_path / "auc.png").read_bytes().startswith(b"\x89PNG")
