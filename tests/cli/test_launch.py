"""`hedgerow launch` and `hedgerow bench comm` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.show import show_comm
from hedgerow.core.errors import ConfigError, InputError
from hedgerow.launch.torchrun import processes, read_config

HEDGEROW = [sys.executable, "-m", "hedgerow"]


def _run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [*HEDGEROW, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_arguments_and_status_go_through(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "open(sys.argv[1] + os.environ['RANK'], 'w').write(' '.join(sys.argv[2:]) + ' ' + "
        "os.environ['HEDGEROW_TIMEOUT_S'])\n"
        "sys.exit('--fail' in sys.argv)\n"
    )
    config = tmp_path / "launch.toml"
    config.write_text("[launch]\nnproc = 2\ntimeout_s = 45\n")
    done = _run("launch", "--config", config, script, tmp_path / "out", "--nproc", "9", "-x")
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"out{rank}").read_text() for rank in range(2)] == ["--nproc 9 -x 45"] * 2
    done = _run("launch", "--config", config, "--nproc", "1", script, tmp_path / "one", "--fail")
    assert done.returncode == 1
    assert (tmp_path / "one0").exists()
    assert not (tmp_path / "one1").exists()


def test_help_and_mistakes_need_no_job() -> None:
    done = _run("launch", "--help")
    assert done.returncode == 0
    assert "torchrun" in done.stdout
    done = _run("launch", "--nproc", "2", "nowhere.py")
    assert done.returncode == 1
    assert done.stderr.startswith("hedgerow: no script nowhere.py")


def test_a_bad_config_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "launch.toml"
    for text, told in (
        ("[launch", "is not TOML"),
        ("[launch]\nworkers = 2", "has 'workers'"),
        ("[launch]\nnproc = 'two'", "launch.nproc is 'two'"),
        ("[launch]\nnproc = true", "launch.nproc is True"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=told):
            read_config(path)


def test_how_many_processes() -> None:
    environ = {"HEDGEROW_NPROC": "3"}
    assert processes(2, {"nproc": 4}, environ) == 2
    assert processes(None, {}, environ) == 3
    assert processes(None, {}, {}) == 1
    with pytest.raises(InputError, match="nproc is 0"):
        processes(0, {}, {})


def test_bench_comm_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    done = _run("bench", "comm", "--json", "--iterations", "60", "--length", "6400")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == ["bench", "work", "versions", "results"]
    assert report["work"]["processes"] == 2
    cases = [(r["case"], r["length"], r["sent"]) for r in report["results"]]
    assert cases == [("ar", n, n) for n in (6400, 3200, 1600)] + [
        ("c2c", n, n // 8) for n in (6400, 3200, 1600)
    ]
    for result in report["results"]:
        assert result["windows"] == 2
        assert result["goodput_gbps"] > 0
        factor = 1.0 if result["case"] == "ar" else 0.5
        assert result["bus_gbps"] == pytest.approx(factor * result["goodput_gbps"])
    show_comm(report)
    shown = capsys.readouterr().out
    assert "goodput Gb/s" in shown
    assert "6,400" in shown


def test_bench_comm_refuses_what_it_cannot_share() -> None:
    from benchmarks.comm import run

    for args, told in (
        ((0, 60, 64, 9), "nproc is 0"),
        ((2, 39, 64, 9), "iterations is 39"),
        ((2, 60, 65, 9), "multiple of 64"),
    ):
        with pytest.raises(InputError, match=told):
            run(*args)
