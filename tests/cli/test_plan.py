"""`hedgerow plan`, `explain` and `check`: tables and jobs in, plans, pages and words out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.cli.options import late_progress
from hedgerow.core.errors import ConfigError, FileMissingError, HedgerowError, InputError
from hedgerow.planner import Plan
from hedgerow.planner.problem.key_stats import key_stats

TABLES = """\
[tables.user]
rows = 90_000_000
dim = 64
optimizer = "adam"

[tables.item]
rows = 5_000_000
dim = 32
dist_type = "roundrobin"
features = [{ids_per_sample = 20.0}, {ids_per_sample = 1.0, pooled = false}]
"""
MACHINES = ("--ranks", 8, "--hbm", "4GiB", "--host", "256GiB")


def _result(*arguments: object) -> Result:
    result = CliRunner().invoke(program.app, [str(part) for part in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def _run(*arguments: object) -> str:
    result = _result(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    path = tmp_path / "tables.toml"
    path.write_text(TABLES)
    return path


def test_a_plan_of_tables(tables: Path, tmp_path: Path) -> None:
    out, html, png = (tmp_path / "out" / name for name in ("plan.json", "plan.html", "plan.png"))
    text = _run("plan", tables, *MACHINES, "--out", out, "--html", html, "--png", png)
    assert text.startswith("Plan for 2 tables on 8 devices (1 machine); solved in")
    assert "What if (HBM of a device" in text
    assert html.read_text().startswith("<!doctype html>")
    assert png.read_bytes()[1:4] == b"PNG"
    found = Plan.load(out)
    assert found.of("item").dist_type == "roundrobin"
    assert found.inputs is not None
    assert [f.pooled for f in found.inputs.by_name["item"].features] == [True, False]
    assert _run("explain", out).splitlines()[1:] == text.splitlines()[1:]


def test_json_and_options(tables: Path) -> None:
    said = _run(
        *("plan", tables, *MACHINES, "--json", "--batch", 64, "--layout", "strict"),
        *("--pin", "user=CACHING,item=HBM_ONLY", "--rows", "user=1_000_000"),
        *("--local-ranks", 4, "--keep-hbm", "1GiB", "--keep-host", "2GiB"),
    )
    values = json.loads(said)
    assert values["inputs"]["settings"]["batch"] == 64
    assert values["inputs"]["settings"]["layout"] == "strict"
    assert values["inputs"]["tables"][0]["rows"] == 1_000_000
    assert [line["mode"] for line in values["tables"]] == ["CACHING", "HBM_ONLY"]
    assert values["topology"]["local_world"] == 4
    assert values["budget"]["reserve"]["hbm_bytes"] == 2**30
    assert values["budget"]["reserve"]["ddr_bytes"] == 2**31


def test_what_if(tables: Path) -> None:
    text = _run("plan", tables, *MACHINES, "--what-if", "hbm=1MiB,2GiB,8GiB")
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("What if"))
    assert "does not fit" in lines[at + 1]
    assert lines[at + 2].lstrip().startswith("2.00 GiB")
    assert lines[at + 3].lstrip().startswith("8.00 GiB")
    assert len(lines) == at + 4
    assert "host memory of a machine" in _run("plan", tables, *MACHINES, "--what-if", "host=1TiB")


def test_tables_as_json(tmp_path: Path) -> None:
    rows = [{"name": "a", "rows": 1000, "dim": 8, "load_factor": "0.5", "modes": ["HYBRID"]}]
    path = tmp_path / "tables.json"
    path.write_text(json.dumps({"tables": rows}))
    assert "HYBRID" in _run("plan", path, *MACHINES)


def test_key_statistics_of_a_file(tables: Path, tmp_path: Path) -> None:
    import numpy as np

    stats = key_stats(np.random.default_rng(1).integers(0, 500, 3000) * 8).to_dict()
    (tmp_path / "keys.json").write_text(json.dumps(stats))
    tables.write_text(TABLES.replace("dim = 32", 'dim = 32\nstats = "keys.json"'))
    found = json.loads(_run("plan", tables, *MACHINES, "--json"))
    assert "stats_sha256" in found["inputs"]["tables"][1]
    assert "stats_sha256" not in found["inputs"]["tables"][0]
    assert found["tables"][1]["dist_type"] == "roundrobin"
    chosen = _result("plan", tables, *MACHINES, "--json", "--choose-routing")
    assert json.loads(chosen.stdout)["tables"][1]["dist_type"] == "hash_roundrobin"
    assert "item: hash_roundrobin instead of roundrobin" in chosen.stderr
    (tmp_path / "keys.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"keys\.json"):
        _run("plan", tables, *MACHINES)
    (tmp_path / "keys.json").unlink()
    with pytest.raises(FileMissingError, match="sample-keys"):
        _run("plan", tables, *MACHINES)


JOB = """\
[data]
source = "clicks"
batch_size = 64
steps = 20

[model]
dim = 8
"""


def test_a_job_is_sampled_for_its_sizes(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    found = json.loads(_run("plan", job, "--ranks", 2, "--hbm", 0, "--host", "8GiB", "--json"))
    user, item = found["inputs"]["tables"]
    assert (user["name"], user["dim"]) == ("user", 9)
    assert 300 < user["rows"] <= 500
    assert 100 < item["rows"] <= 200
    assert item["features"][0] == [1.0, True]
    assert 1 < item["features"][1][0] < 8
    assert "stats_sha256" in user
    assert found["inputs"]["settings"]["batch"] == 32
    assert {line["mode"] for line in found["tables"]} == {"HOST_ONLY"}
    more = _run("plan", job, "--ranks", 2, "--hbm", 0, "--json", "--rows", "user=123456")
    assert json.loads(more)["inputs"]["tables"][0]["rows"] == 123456
    with pytest.raises(ConfigError, match="--rows names users; the tables are user, item"):
        _run("plan", job, "--ranks", 2, "--rows", "users=5")


def test_a_job_larger_than_the_sample_needs_rows(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    with (
        mock.patch("hedgerow.cli.table_files.SAMPLE_IDS", 100),
        pytest.raises(ConfigError, match=r"'user' has no rows.*\[model\.tables\.user\].*--rows"),
    ):
        _run("plan", job, "--ranks", 2, "--hbm", 0)
    rows = "[model.tables.user]\nrows = 1000\n[model.tables.item]\nrows = 2000\n"
    job.write_text(JOB + rows)
    with mock.patch("hedgerow.cli.table_files.SAMPLE_IDS", 100):
        found = json.loads(_run("plan", job, "--ranks", 2, "--hbm", 0, "--json"))
    assert [table["rows"] for table in found["inputs"]["tables"]] == [1000, 2000]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "must hold at least one table"),
        ("[tables.a]\nrows = 5\n", r"tables\.toml:1: tables\.a\.dim: is missing"),
        ("[tables.a]\nrows = 5\ndim = 2\nrow = 3\n", "unknown key; known:.*'rows'"),
        ("[tables.a]\nrows = 0\ndim = 2\n", "tables.a.rows: is 0; it must be at least 1"),
        ("[tables.a]\nrows = 5\ndim = 2\ndist_type = 'x'\n", "dist_type: is 'x'"),
        ("[tables.a]\nrows = 5\ndim = 2\nmodes = ['FAST']\n", "modes: is 'FAST'"),
        ("[other]\n", "unknown key; known: tables"),
        ("tables = 3", "must hold at least one table"),
        ("tables = [{rows = 1}]", "number 1 of the list has no name"),
        ('tables = [{name = "a"}, {name = "a"}]', "two tables are named 'a'"),
        ("[tables", "this is no TOML"),
    ],
)
def test_files_that_are_wrong(tables: Path, text: str, rule: str) -> None:
    tables.write_text(text)
    with pytest.raises(ConfigError, match=rule):
        _run("plan", tables, *MACHINES)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("--hbm", "80GB/s"), "--hbm: '80GB/s' is not a size"),
        (("--pin", "user"), "--pin has 'user'; write NAME=VALUE"),
        (("--pin", "user=A,user=B"), "twice"),
        (("--pin", "user=FAST"), "give a mode"),
        (("--rows", "user=many"), "whole number"),
        (("--rows", "users=1"), "--rows names 'users'"),
        (("--what-if", "ranks=3"), "write hbm= or host="),
        (("--layout", "mine"), "layout"),
        (("--calibration", "none.json"), "none.json"),
    ],
)
def test_options_that_are_wrong(tables: Path, options: tuple[str, ...], rule: str) -> None:
    with pytest.raises(HedgerowError, match=rule):
        _run("plan", tables, *MACHINES, *options)


def test_what_does_not_fit_is_told_in_lines(tables: Path) -> None:
    result = _result("plan", tables, "--ranks", 2, "--hbm", "1GiB", "--host", "2GiB")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "hedgerow: Does not fit: 2 tables on 2 devices (1 machine)."
    assert any("short by" in line for line in lines)
    assert any(line.strip().startswith("user (90 000 000 x 64, adam)") for line in lines)


def test_explain_a_table(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    _run("plan", tables, *MACHINES, "--out", out)
    text = _run("explain", out, "user")
    assert "chosen" in text
    assert text.startswith("user (90 000 000 x 64, adam): ")
    values = json.loads(_run("explain", out, "user", "--json"))
    assert [o["why"] for o in values["options"]].count("chosen") == 1
    assert json.loads(_run("explain", out, "--json"))["format"] == "placement-plan"
    with pytest.raises(HedgerowError, match="unknown table 'users'"):
        _run("explain", out, "users")
    with pytest.raises(FileMissingError):
        _run("explain", tmp_path / "none.json")


def test_check_of_machines(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    _run("plan", tables, *MACHINES, "--out", out)
    assert "carries" in _run("check", out, "--hbm", "4GiB", "--host", "256GiB")

    def refused(*options: object) -> dict[str, Any]:
        result = _result("check", out, *options, "--json")
        assert result.exit_code == 1
        return json.loads(result.stdout)

    small = refused("--hbm", "1GiB", "--host", "1GiB")
    assert not small["carries"]
    assert any("HBM of rank 0: needs" in line for line in small["wrong"])
    assert any("host memory of machine 0" in line for line in small["wrong"])
    assert "no cards" in refused("--hbm", 0, "--host", "1TiB")["wrong"][0]
    assert "for 8 ranks, not 4" in refused("--ranks", 4, "--hbm", "4GiB")["wrong"][0]
    plain = _result("check", out, "--hbm", "1GiB", "--host", "1TiB")
    assert plain.exit_code == 1
    assert "cannot carry" in plain.stdout


def test_check_of_tables(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    _run("plan", tables, *MACHINES, "--out", out)
    here = ("check", out, "--hbm", "4GiB", "--host", "256GiB", "--tables", tables)
    _run(*here)
    tables.write_text(TABLES.replace("5_000_000", "5_000_001"))
    with pytest.raises(ConfigError, match="item: rows 5 000 000 in the plan, 5 000 001 now"):
        _run(*here)
    _run(*here, "--accept-drift")


def test_this_machine_stands_in_for_what_is_not_said(tables: Path) -> None:
    found = json.loads(
        _run("plan", tables, "--ranks", 1, "--hbm", 0, "--rows", "user=100,item=100", "--json")
    )
    assert found["topology"]["device"] == "cpu"
    assert found["topology"]["ddr_per_machine"] > 2**28


def test_progress_is_silent_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    with late_progress() as progress:
        progress("quick", 1, 2)
    assert capsys.readouterr().err == ""
    with (
        mock.patch("hedgerow.cli.options._QUIET_S", -1.0),
        mock.patch("hedgerow.cli.options._PLAIN_S", -1.0),
        late_progress() as progress,
    ):
        progress("slow", 1, 2)
        progress("slow", 2, 2)
    assert capsys.readouterr().err == "slow 1/2\nslow 2/2\n"
    with (
        mock.patch("hedgerow.cli.options._QUIET_S", -1.0),
        mock.patch("sys.stderr.isatty", return_value=True),
        late_progress() as progress,
    ):
        progress("live", 1, 0)
    assert "\r\033[Klive 1" in capsys.readouterr().err


def test_bad_sizes_of_a_reserve(tables: Path) -> None:
    with pytest.raises(InputError, match="--keep-hbm"):
        _run("plan", tables, *MACHINES, "--keep-hbm", "much")
