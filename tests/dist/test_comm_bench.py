"""The communication benchmarks in two real processes over gloo."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .launched import finish

SCRIPT = Path(__file__).parent / "comm_script.py"
pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both processes saw: one start for all tests."""
    folder = tmp_path_factory.mktemp("comm")
    launch = [sys.executable, "-m", "hedgerow", "launch", "--nproc", "2"]
    done = finish([*launch, SCRIPT, folder])
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(2)]


def test_every_window_is_told_by_rank_0_and_the_first_is_dropped(found: Any) -> None:
    for rank, values in enumerate(found):
        assert len(values["ar"]) == 65 // 20 - 1
        assert len(values["c2c"]) == 60 // 20 - 1
        assert all(goodput > 0 for goodput in values["ar"] + values["c2c"])
        assert len(values["ar lines"]) == (3 if rank == 0 else 0)
        assert len(values["c2c lines"]) == (3 if rank == 0 else 0)
    assert all(line.startswith("ar CPU: total_len 1000,") for line in found[0]["ar lines"])
    assert all(line.startswith("c2c: total_len 200.0,") for line in found[0]["c2c lines"])


def test_the_goodput_told_is_the_goodput_returned(found: Any) -> None:
    told = [float(line.split("goodput ")[1].split()[0]) for line in found[0]["c2c lines"]]
    assert told[1:] == pytest.approx(found[0]["c2c"], abs=5e-4)


def test_fewer_than_40_iterations_leave_nothing(found: Any) -> None:
    assert [values["few"] for values in found] == [[[], [], []], [[], [], []]]


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("odd", "InputError: total_len 1608 means 201.0 elements to send, which 2 processes"),
        ("fraction", "InputError: total_len 1601 means 200.125 elements"),
        ("none", "InputError: total_len is 0"),
        ("op", "InputError: op is 'pull'"),
        ("broken ar", "LaunchError: all-reduce gave 8 of 8 wrong values"),
        ("broken a2a", "LaunchError: all-to-all gave 4 of 4 wrong values"),
        ("unset", "ConfigError: MONOLITH_BENCHMARK_BPS is 'none'"),
        ("unknown", "ConfigError: MONOLITH_BENCHMARK_BPS is 'c2d'"),
        ("iters", "ConfigError: MONOLITH_BENCHMARK_ITERS is 39; at least 40"),
        ("text", "ConfigError: MONOLITH_BENCHMARK_BPS_A2A_LEN is 'x'"),
    ],
)
def test_what_cannot_be_measured_is_told(found: Any, case: str, told: str) -> None:
    for values in found:
        assert values["bad"][case].startswith(told)
        assert values["still together"] == 2


@pytest.mark.parametrize("case", ["g2g", "c2g", "g2c"])
def test_gpu_cases_without_a_gpu_are_told(found: Any, case: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("A GPU IS HERE: what happens without one is not tested")
    assert found[0]["bad"][case].startswith("InputError: there is no GPU here")


def test_the_driver_keeps_the_undivided_length_and_halves_it(found: Any) -> None:
    run = found[0]["drivers"]["c2c"]
    assert [length for length, _ in run["found"]["c2c"]] == [6400, 3200, 1600]
    assert all(mean > 0 for _, mean in run["found"]["c2c"])
    sent = [line.split("total_len ")[1].split(",")[0] for line in run["lines"][:-1]]
    assert sent == ["800.0"] * 3 + ["400.0"] * 3 + ["200.0"] * 3
    assert run["lines"][-1].startswith("c2c_summary: [(6400, ")
    assert found[1]["drivers"]["c2c"]["lines"] == []


def test_the_driver_averages_at_one_length(found: Any) -> None:
    run = found[0]["drivers"]["ar"]
    assert {length for length, _ in run["found"]["ar"]} == {500}
    assert len([line for line in run["lines"] if line.startswith("ar CPU: total_len 500")]) == 3
    assert run["lines"][-1].startswith("ar_summary: [(500, ")


def test_all_runs_in_monolith_order(found: Any) -> None:
    lines = found[0]["drivers"]["all"]["lines"]
    order = [line.split("_summary")[0] for line in lines if "_summary" in line]
    assert order == ["c2g", "g2g", "c2c", "g2c", "ar"]
