from __future__ import annotations

import json
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from benchmarks.plan import FULL, cost_of, grid_peer, plain_highs, plan_work, run
from benchmarks.show import show_plan_bench
from hedgerow.cli.app import app
from hedgerow.core.errors import InputError
from hedgerow.planner.problem.options import Option, TableOptions
from hedgerow.planner.problem.topology import Budget
from hedgerow.planner.solver.solve import solve


def test_the_full_sizes_are_those_of_the_issue() -> None:
    assert [size.tables for size in FULL] == [1_000, 10_000]
    assert FULL[0].grids == ((200, 50), (400, 100))


def test_problems_are_the_same_for_a_seed_and_both_budgets_bind() -> None:
    assert plan_work(3, 20) == plan_work(3, 20)
    assert plan_work(3, 20) != plan_work(4, 20)
    tables, budget = plan_work(0, 200)
    assert {len(table.options) for table in tables} == {24}
    prices = solve(tables, budget).prices
    assert prices.hbm_ms_per_byte > 0
    assert prices.ddr_ms_per_byte > 0


@pytest.mark.parametrize("seed", range(4))
def test_highs_agrees_and_no_grid_finds_a_better_plan(seed: int) -> None:
    tables, budget = plan_work(seed, 40)
    best = cost_of(tables, solve(tables, budget).choice)
    peer = plain_highs(tables, budget)
    assert peer is not None
    assert cost_of(tables, peer) == best
    grid = grid_peer(60, 30)(tables, budget)
    assert grid is None or cost_of(tables, grid) >= best


def test_the_grid_misses_a_plan_that_exists() -> None:
    ways = (Option("cheap", 14, 0, 1.0), Option("small", 10, 0, 1.1))
    tables = [TableOptions(f"t{index}", ways) for index in range(10)]
    budget = Budget(101, Fraction(10))
    assert solve(tables, budget).hbm <= 101
    assert grid_peer(5, 1)(tables, budget) is None


def test_a_quick_run_reports_every_solver_and_equal_results() -> None:
    steps: list[tuple[int, int]] = []
    report = run(lambda text, done, total: steps.append((done, total)), rounds=1, quick=True)
    assert report["bench"] == "plan"
    ours = [r for r in report["results"] if "peer" not in r]
    assert [(r["case"], r["proven"]) for r in ours] == [("60 tables", 1), ("200 tables", 1)]
    exact = [r for r in report["results"] if r.get("peer") == "plain HiGHS"]
    assert [r["equal"] for r in exact] == [True, True]
    grids = [r for r in report["results"] if r.get("peer", "").startswith("grid")]
    assert [r["peer"] for r in grids] == ["grid 20x10", "grid 40x20"]
    assert all(r["gap"] is None or r["gap"] >= 0 for r in grids)
    assert steps[-1] == (6, 6)


def test_no_rounds_are_refused() -> None:
    with pytest.raises(InputError, match="rounds is 0"):
        run(lambda text, done, total: None, rounds=0, quick=True)


def test_the_command_prints_one_json_object_or_a_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = CliRunner().invoke(app, ["bench", "plan", "--quick", "--rounds", "1", "--json"])
    if done.exception is not None:
        raise done.exception
    report = json.loads(done.stdout)
    assert report["work"]["devices"] == 128
    show_plan_bench(report)
    shown = capsys.readouterr().out
    assert "60 tables: ours" in shown
    assert "grid 20x10" in shown
