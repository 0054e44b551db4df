"""`hedgerow doctor`: what it names, how to get it, and when it fails."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from unittest import mock

import pytest
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.cli import doctor

_WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "{name}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name="{name}")
sys.meta_path.insert(0, Absent())
sys.argv = ["hedgerow", "doctor", "--json"]
from hedgerow.cli.app import main
main()
"""


def _without(name: str) -> tuple[dict[str, dict[str, str]], int]:
    """What the doctor finds where a library cannot be imported, and its exit status."""
    code = _WITHOUT.format(name=name)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout, run.stderr
    found = json.loads(run.stdout)
    return {one["part"].split(" ")[0]: one for one in found}, run.returncode


@pytest.mark.parametrize(
    ("name", "command", "status"),
    [
        ("torch", "pip install 'torch>=2.9'", 1),
        ("pyarrow", "pip install 'pyarrow>=17'", 1),
        ("triton", "pip install 'hedgerow[gpu]'", 0),
        ("matplotlib", "pip install 'hedgerow[plan]'", 0),
    ],
)
def test_a_missing_library_is_named_with_the_command_to_get_it(
    name: str, command: str, status: int
) -> None:
    found, code = _without(name)
    assert found[name]["status"] == "absent"
    assert found[name]["fix"] == command
    assert f"no module {name}" in found[name]["detail"]
    assert code == status


def test_every_part_is_one_line_and_a_whole_installation_is_status_0() -> None:
    result = CliRunner().invoke(program.app, ["doctor"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == len(doctor.CHECKS)
    for part in ("torch ", "native core ", "pyarrow ", "open files ", "free memory ", "huge pages"):
        assert sum(line.startswith(part) for line in lines) == 1


def test_a_low_limit_of_open_files_is_told_with_the_command_that_lifts_it() -> None:
    with mock.patch.object(resource, "getrlimit", return_value=(1024, 4096)):
        found = {one.part: one for one in doctor.findings()}
    assert found["open files"].status == "low"
    assert found["open files"].fix == "ulimit -n 4096"
    assert not found["open files"].stops


def test_a_broken_core_stops_and_says_why() -> None:
    with mock.patch("hedgerow.native.isa", create=True, side_effect=ImportError("bad\nsymbol")):
        found = {one.part: one for one in doctor.findings()}
    assert found["native core"].status == "broken"
    assert found["native core"].detail == "ImportError: bad symbol"
    assert "make env" in found["native core"].fix
    assert "reinstall hedgerow" not in found["native core"].fix  # it is on no package index
    assert found["native core"].stops


@pytest.mark.parametrize(("code", "status"), [(0, "ok"), (1, "absent")])
def test_online_asks_the_package_index_for_a_short_while(code: int, status: str) -> None:
    done = subprocess.CompletedProcess([], code)
    with mock.patch.object(subprocess, "run", return_value=done) as run:
        (*_, last) = doctor.findings(online=True)
    assert (last.part, last.status) == ("package index", status)
    assert run.call_args.kwargs["timeout"] <= 30
    with mock.patch.object(subprocess, "run", side_effect=subprocess.TimeoutExpired("pip", 1)):
        (*_, last) = doctor.findings(online=True)
    assert last.status == "absent"
    assert "--data clicks" in last.fix
