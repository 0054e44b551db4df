"""The program: its help, its version, and what it says of errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import hedgerow as hr
from hedgerow.cli import app as program
from hedgerow.core.errors import ConfigError, HedgerowError, OutOfMemoryError

ROOT = Path(__file__).parents[2]


def _help(*arguments: str) -> str:
    result = CliRunner().invoke(program.app, [*arguments, "--help"])
    assert result.exit_code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", plain).split())


def test_help_names_the_verbs() -> None:
    assert "bench Measure Hedgerow and its peers" in _help()
    assert "table Measure the host table" in _help("bench")


def _verbs(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    for name, verb in group.commands.items():
        yield (*before, name)
        if hasattr(verb, "commands"):
            yield from _verbs(verb, *before, name)


VERBS = list(_verbs(typer.main.get_command(program.app)))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_of_every_verb_needs_no_launcher(
    verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a device or a network; even a broken launcher's variables are not looked at."""
    monkeypatch.setenv("RANK", "nonsense")
    shown = _help(*verb)
    assert re.search(rf"Usage: \S+ {' '.join(verb)} ", shown), shown
    assert "--help" in shown


def test_the_verbs_are_all_there() -> None:
    assert {("train",), ("launch",), ("balance",), ("bench", "comm"), ("predict",)} <= set(VERBS)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_help_of_every_example_needs_no_launcher(example: Path) -> None:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "RANK": "nonsense"}
    run = subprocess.run(
        [sys.executable, example, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environ,
    )
    assert run.returncode == 0, run.stderr
    assert "usage" in run.stdout.lower()


@pytest.mark.parametrize(
    "text",
    [
        "--json Print one JSON object",
        "--threads",
        "--rounds",
        "--cases",
        "--peers",
        "--quick Small works",
        "above 1 we are faster",
        "make bench-peers",
    ],
)
def test_help_of_the_table_benchmark_explains_itself(text: str) -> None:
    assert text in _help("bench", "table")


@pytest.mark.parametrize(
    "command",
    [(sys.executable, "-m", "hedgerow"), (str(Path(sys.executable).with_name("hedgerow")),)],
)
def test_both_ways_to_start_it_show_the_version(command: tuple[str, ...]) -> None:
    run = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    assert run.stdout == f"hedgerow {hr.__version__}\n"
    assert run.returncode == 0


@pytest.mark.parametrize("arguments", [["--nonsense"], ["bench", "cable"], ["bench", "table", "x"]])
def test_what_the_program_does_not_know_is_status_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(program.app, arguments)
    assert result.exit_code == 2
    assert not isinstance(result.exception, HedgerowError)


@pytest.mark.parametrize(
    ("error", "status"),
    [(OutOfMemoryError("no more\nmemory"), 1), (ConfigError("dim is 0\nset it"), 2)],
)
def test_an_error_of_ours_is_one_line_and_has_its_status(
    error: HedgerowError,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(program, "app", fail)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == status
    assert capsys.readouterr().err == "hedgerow: " + str(error).replace("\n", " ") + "\n"
