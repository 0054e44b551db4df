"""Lines of the log on stderr: with time and level, from the level that was asked for."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.cli import log_lines
from hedgerow.core.errors import ConfigError

JOB = """\
[data]
source = "clicks"
steps = 2
batch_size = 8
[model.tables]
user = {rows = 100}
item = {rows = 100}
[train]
plan = "auto"
"""
LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (INFO|WARNING) (.*)$")


def _logged(level: str | None) -> list[str]:
    log = logging.getLogger("hedgerow.some.part")
    with log_lines.log_lines(level):
        for name in ("debug", "info", "warning", "error"):
            getattr(log, name)("%s told", name)
        with log_lines.shown_log():
            log.info("set up")
    return []


@pytest.mark.parametrize(
    ("level", "told"),
    [
        (None, ["WARNING warning told", "ERROR error told", "INFO set up"]),
        ("error", ["ERROR error told"]),
        (
            "debug",
            ["DEBUG debug told", "INFO info told", "WARNING warning told", "ERROR error told",
             "INFO set up"],
        ),
    ],
)  # fmt: skip
def test_lines_have_time_and_level(
    level: str | None, told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = logging.getLogger("hedgerow").level
    _logged(level)
    lines = capsys.readouterr().err.splitlines()
    stamp = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ")
    assert all(stamp.match(line) for line in lines), lines
    assert [stamp.sub("", line) for line in lines] == told
    assert logging.getLogger("hedgerow").level == before


def test_a_level_that_does_not_exist_is_refused() -> None:
    result = CliRunner().invoke(program.app, ["--log-level", "verbose", "doctor"])
    assert isinstance(result.exception, ConfigError)
    assert "must be one of debug, info, warning, error" in str(result.exception)


def test_the_program_takes_a_level_before_the_verb(tmp_path: Path) -> None:
    """A plan is logged while a job is set up."""
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    start = [sys.executable, "-m", "hedgerow"]
    told = []
    for more in ([], ["--log-level", "error"]):
        out = tmp_path / f"run{len(told)}"
        done = subprocess.run(
            [*start, *more, "train", str(job), "--out", str(out)],
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        told.append([line for line in done.stderr.splitlines() if LINE.match(line)])
    assert told[0]
    assert all(" INFO " in line for line in told[0])
    assert told[1] == []
