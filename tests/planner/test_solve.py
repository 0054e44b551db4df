from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from fractions import Fraction

import pytest

from benchmarks.plan import plan_work
from hedgerow.core.errors import InputError
from hedgerow.planner.problem.options import Option, PlanError, Solution, TableOptions
from hedgerow.planner.problem.topology import Budget
from hedgerow.planner.solver.branch import branch
from hedgerow.planner.solver.choice_problem import ChosenOptions, Core, choice_problem, prune, whole
from hedgerow.planner.solver.core_milp import by_highs
from hedgerow.planner.solver.solve import fits, solve

from .problems import cost, exhaustive, plain_highs, random_problem


def _solved(tables: list[TableOptions], budget: Budget) -> Solution | None:
    try:
        return solve(tables, budget)
    except PlanError as error:
        if error.kind != "infeasible":
            raise
        return None


@pytest.mark.parametrize("coarse", [False, True], ids=["fine", "many ties"])
@pytest.mark.parametrize("block", range(10))
def test_small_problems_have_the_answer_of_exhaustive_search(block: int, coarse: bool) -> None:
    fitting = 0
    for seed in range(30 * block, 30 * block + 30):
        tables, budget = random_problem(seed, 2 + seed % 5, 5, coarse=coarse)
        best, found = exhaustive(tables, budget), _solved(tables, budget)
        assert (found is None) == (best is None), seed
        if found is not None and best is not None:
            fitting += 1
            assert (cost(tables, found.choice), found.hbm, found.ddr, found.choice) == best, seed
    assert 0 < fitting < 30


@pytest.mark.parametrize("block", range(10))
def test_middle_problems_have_the_optimum_of_plain_highs(block: int) -> None:
    for seed in range(1000 + 30 * block, 1030 + 30 * block):
        tables, budget = random_problem(seed, 10 + seed % 16, 8)
        least, found = plain_highs(tables, budget), _solved(tables, budget)
        assert (found is None) == (least is None), seed
        if found is not None:
            assert cost(tables, found.choice) == least, seed
            assert found.status == "optimal"
            assert found.gap == 0


def test_the_time_is_the_sum_of_the_options_and_the_bound_with_it() -> None:
    tables, budget = random_problem(4, 6, 5)
    found = solve(tables, budget)
    chosen = [t.options[c] for t, c in zip(tables, found.choice, strict=True)]
    assert found.ms == found.lower_bound_ms == math.fsum(o.ms for o in chosen)
    assert (found.hbm, found.ddr) == (sum(o.hbm for o in chosen), sum(o.ddr for o in chosen))


GIB_40 = 40 * 2**30


@pytest.mark.parametrize("over", [0, 1], ids=["exact fit", "one byte over"])
def test_a_budget_holds_to_the_byte(over: int) -> None:
    one = TableOptions("one", (Option("a", GIB_40 + over, 0, 1.0), Option("b", GIB_40, 7, 2.0)))
    two = TableOptions("two", (Option("a", GIB_40, 0, 1.0),))
    found = solve([one, two], Budget(2 * GIB_40, Fraction(7)))
    assert found.choice == ((1, 0) if over else (0, 0))
    with pytest.raises(PlanError):
        solve([one, two], Budget(2 * GIB_40 - 1, Fraction(7)))


def test_a_pool_that_does_not_divide_evenly_binds_at_its_fraction() -> None:
    table = TableOptions("one", (Option("a", 0, 4, 1.0), Option("b", 0, 3, 2.0)))
    assert solve([table], Budget(0, Fraction(7, 2))).choice == (1,)
    assert solve([table], Budget(0, Fraction(8, 2))).choice == (0,)


def test_equal_tables_in_great_number_are_no_burden_and_the_first_get_the_first_options() -> None:
    ways = (Option("a", 8, 0, 1.0), Option("b", 3, 5, 2.0), Option("c", 0, 8, 4.0))
    tables = [TableOptions(f"t{index}", ways) for index in range(300)]
    found = solve(tables, Budget(1000, Fraction(5000)))
    assert found.status == "optimal"
    assert list(found.choice) == sorted(found.choice)


@pytest.mark.parametrize("with_scipy", [True, False])
def test_a_tiny_time_limit_gives_a_choice_that_fits_with_a_true_gap(
    with_scipy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hedgerow.planner.solver.solve.available", lambda: with_scipy)
    tables, budget = plan_work(1, 300)
    best, early = solve(tables, budget), solve(tables, budget, time_limit=1e-9)
    assert (best.status, early.status) == ("optimal", "time_limit")
    assert early.hbm <= budget.hbm
    assert early.ddr <= budget.ddr_per_rank
    assert early.lower_bound_ms <= best.ms <= early.ms
    assert 0 < early.gap < 0.05
    assert early.gap == (early.ms - early.lower_bound_ms) / early.ms


def test_without_scipy_the_answer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [random_problem(seed, 12, 8) for seed in range(2000, 2020)]
    with_it = [_solved(*case) for case in cases]
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setattr("hedgerow.planner.solver.solve.available", lambda: False)
    for case, before in zip(cases, with_it, strict=True):
        after = _solved(*case)
        assert (after is None) == (before is None)
        if after is not None and before is not None:
            assert after.choice == before.choice
            assert after.status == "optimal"


def test_highs_is_asked_where_our_own_search_takes_long_and_the_answer_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables, budget = plan_work(1, 60)
    best = solve(tables, budget)
    asked: list[ChosenOptions] = []

    def ask(core: Core, answer: ChosenOptions, deadline: float) -> tuple[ChosenOptions, float]:
        asked.append(answer)
        return by_highs(core, answer, deadline)

    monkeypatch.setattr("hedgerow.planner.solver.solve.by_highs", ask)
    monkeypatch.setattr("hedgerow.planner.solver.solve._VISITS", 0)
    found = solve(tables, budget, time_limit=60)
    assert asked
    assert (found.status, found.choice) == ("optimal", best.choice)


@pytest.mark.parametrize("seed", range(6))
def test_highs_on_the_core_finds_the_optimum_and_its_bound(seed: int) -> None:
    tables, budget = plan_work(seed, 60)
    left = prune(choice_problem(tables, budget))
    assert left is not None
    core = whole(left)
    first = branch(core, None, visits=0).answer
    best = branch(core, None).answer
    assert first is not None
    assert best is not None
    answer, bound = by_highs(core, first, time.monotonic() + 60)
    assert answer.cost == bound == best.cost


_SCRIPT = """
import sys
from benchmarks.plan import plan_work
from hedgerow.planner.solver.solve import solve
from tests.planner.problems import random_problem
for case in (plan_work(5, 80), random_problem(2, 9, 6, coarse=True)):
    found = solve(*case)
    print(found.status, found.choice, found.ms.hex(), found.hbm, found.ddr, found.prices)
"""


def test_two_processes_choose_the_same_bit_for_bit() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert said[0].startswith("optimal")


def test_no_tables_need_nothing() -> None:
    found = solve([], Budget(0, Fraction(0)))
    assert (found.status, found.choice, found.ms, found.hbm, found.ddr) == ("empty", (), 0, 0, 0)


def test_a_table_without_options_is_named() -> None:
    with pytest.raises(PlanError, match="'b' has no options") as caught:
        solve([TableOptions("b", ())], Budget(1, Fraction(1)))
    assert caught.value.kind == "no_options"
    assert caught.value.never_fit == ("b",)


@pytest.mark.parametrize(
    "bad", [Option("x", -1, 0, 1.0), Option("x", 0, 0, math.nan), Option("x", 2**62, 0, 1.0)]
)
def test_an_option_that_cannot_be_is_refused_by_name(bad: Option) -> None:
    with pytest.raises(InputError, match="Option x of table 'odd'"):
        solve([TableOptions("odd", (bad,))], Budget(1, Fraction(1)))


def _same_price_everywhere(tables: int, block: int) -> list[TableOptions]:
    """A byte less of the one memory is a byte more of the other, in blocks."""
    dice = random.Random(1)
    sizes = [block * dice.randint(1, 2**28) for _ in range(tables)]
    return [
        TableOptions(
            f"t{place}",
            (
                Option("HBM_ONLY@1.0", size, 0, 0.5 + place / 97),
                Option("HOST_ONLY@0", 0, size, 2.0),
            ),
        )
        for place, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("block", [16, 4096])
def test_shortfalls_are_exact_and_quick_where_memories_trade_at_one_price(block: int) -> None:
    # Budgets that are no multiples of a block: a search by bounds alone would try every sum.
    tables = _same_price_everywhere(50, block)
    total = sum(table.options[0].hbm for table in tables)
    ddr = total // 2 // block * block + block // 2
    with pytest.raises(PlanError) as caught:
        solve(tables, Budget(total - ddr - 3 * block, Fraction(ddr)))
    hbm, host = caught.value.shortfalls
    assert hbm.least_joint == total - ddr // block * block
    assert host.least_joint == total - (total - ddr - 3 * block) // block * block


def test_a_budget_between_blocks_is_seen_not_to_fit() -> None:
    tables = _same_price_everywhere(50, 16)
    total = sum(table.options[0].hbm for table in tables)
    ddr = total // 2 // 16 * 16 + 8
    assert not fits(tables, Budget(total - ddr + 4, Fraction(ddr)))
    assert fits(tables, Budget(total - ddr + 8, Fraction(ddr)))


def test_huge_sizes_at_exact_fit_are_no_shortfall() -> None:
    # Prices of a byte times 2**58 bytes round by more than the times themselves.
    ways = (
        Option("a", 52264659436995305, 235965716714716439, 1.620972),
        Option("b", 108780148915089152, 179450227236622592, 2.511708),
    )
    found = solve([TableOptions("t", ways)], Budget(ways[1].hbm, Fraction(ways[1].ddr)))
    assert found.choice == (1,)
    doubled = [TableOptions("t", ways), TableOptions("u", ways)]
    budget = Budget(ways[0].hbm + ways[1].hbm, Fraction(ways[0].ddr + ways[1].ddr))
    assert solve(doubled, budget).choice in ((0, 1), (1, 0))
