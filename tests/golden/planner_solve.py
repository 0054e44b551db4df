"""Vectors of choices: tables with options in budgets, alone and through bytes and times."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from hedgerow.planner.problem.options import Option, PlanError, Solution, TableOptions
from hedgerow.planner.problem.topology import Budget, Topology
from hedgerow.planner.sizes.storage import storage_of
from hedgerow.planner.solver.placement import place
from hedgerow.planner.solver.placement_problem import PlacementOption, PlacementTable
from hedgerow.planner.solver.solve import solve
from tests.planner.published_planner import baseline_ms

from .planner_area import AREA, layout_of, load_of, spec_of, topology_of, variants_of
from .runner import Case, take

_SHORT = (
    *("status", "hbm_budget", "ddr_budget_per_rank", "hbm_least_alone", "ddr_least_alone"),
    *("hbm_least_with_ddr_in_budget", "ddr_least_with_hbm_in_budget", "hbm_short_alone"),
    *("ddr_short_alone", "hbm_short_joint", "ddr_short_joint", "never_fit"),
)
_PLACED = (
    *("status", "busiest_rank", "sum_perf", "hbm_by_rank", "perf_by_rank", "ddr_by_machine"),
)
_FOUND = ("status", "total_perf", "hbm", "ddr_per_rank", "choice")


@AREA.handles("joint", "cases")
def choice_of_options(case: Case) -> None:
    c = case.take(("id", "tables", "hbm_per_device", "machines", "expect"), ("note",))
    tables = [_options(table) for table in c["tables"]]
    machines = [take(machine, ("ranks", "ddr")) for machine in c["machines"]]
    shares = [Fraction(machine["ddr"], machine["ranks"]) for machine in machines]
    _check(tables, Budget(min(c["hbm_per_device"]), min(shares)), c["expect"])


def _options(table: dict[str, Any]) -> TableOptions:
    t = take(table, ("name", "options"))
    ways = [take(option, ("label", "hbm", "ddr", "perf")) for option in t["options"]]
    return TableOptions(
        t["name"], tuple(Option(w["label"], w["hbm"], w["ddr"], w["perf"]) for w in ways)
    )


@AREA.handles("end_to_end", "cases")
def choice_of_tables(case: Case) -> None:
    c = case.take(("id", "layout", "axis", "perf", "tables", "topology", "expect"), ("note",))
    assert c["perf"] == "baseline", f"no such model: {c['perf']}"
    topology = topology_of(c["topology"])
    tables = [weighed(table, topology, c["layout"], c["axis"]) for table in c["tables"]]
    _check(tables, topology.budget(), c["expect"])


def weighed(table: dict[str, Any], topology: Topology, layout: str, axis: str) -> TableOptions:
    """A table's variants with the bytes of a layout and the published times."""
    spec, load = spec_of(table), load_of(table)
    ways = []
    for variant in variants_of(axis, spec, topology):
        storage = storage_of(spec, variant, topology, layout_of(layout, table), load)
        ms = baseline_ms(spec, variant, topology, load)
        ways.append(Option(variant.label, storage.hbm, storage.ddr, float(ms)))
    return TableOptions(spec.name, tuple(ways))


def _check(tables: list[TableOptions], budget: Budget, expect: dict[str, Any]) -> None:
    if expect["status"] in ("optimal", "empty"):
        _check_found(tables, solve(tables, budget), take(expect, _FOUND))
        return
    with pytest.raises(PlanError) as caught:
        solve(tables, budget)
    assert caught.value.kind == expect["status"]
    if expect["status"] == "no_options":
        assert caught.value.never_fit == (take(expect, ("status", "table"))["table"],)
    else:
        _check_short(caught.value, take(expect, _SHORT))


def _check_found(tables: list[TableOptions], found: Solution, expect: dict[str, Any]) -> None:
    assert found.status == expect["status"]
    assert found.ms == pytest.approx(expect["total_perf"], rel=1e-9, abs=0)
    assert (found.hbm, found.ddr) == (expect["hbm"], expect["ddr_per_rank"])
    chosen = zip(tables, found.choice, strict=True)
    assert {table.name: table.options[c].label for table, c in chosen} == expect["choice"]


def _check_short(error: PlanError, expect: dict[str, Any]) -> None:
    hbm, ddr = error.shortfalls
    assert (hbm.memory, ddr.memory) == ("hbm", "ddr")
    assert (hbm.budget, ddr.budget) == (
        expect["hbm_budget"],
        Fraction(expect["ddr_budget_per_rank"]),
    )
    assert hbm.least_alone == expect["hbm_least_alone"]
    assert ddr.least_alone == expect["ddr_least_alone"]
    assert hbm.least_joint == expect["hbm_least_with_ddr_in_budget"]
    assert ddr.least_joint == expect["ddr_least_with_hbm_in_budget"]
    assert hbm.short_alone == expect["hbm_short_alone"]
    assert ddr.short_alone == Fraction(expect["ddr_short_alone"])
    assert hbm.short_joint == expect["hbm_short_joint"]
    joint = expect["ddr_short_joint"]
    assert ddr.short_joint == (None if joint is None else Fraction(joint))
    assert list(error.never_fit) == expect["never_fit"]


@AREA.handles("placement", "cases")
def place_of_tables(case: Case) -> None:
    c = case.take(
        ("id", "local_world", "hbm_by_rank", "ddr_by_machine", "tables", "expect"), ("note",)
    )
    tables = [_placement_table(table) for table in c["tables"]]
    where = (c["hbm_by_rank"], c["ddr_by_machine"], c["local_world"])
    if c["expect"]["status"] == "infeasible":
        take(c["expect"], ("status",))
        with pytest.raises(PlanError) as caught:
            place(tables, *where)
        assert caught.value.kind == "infeasible"
        return
    expect = take(c["expect"], (*_PLACED, "choice"))
    found = place(tables, *where)
    assert found.status == expect["status"]
    assert found.busiest_ms == pytest.approx(expect["busiest_rank"], rel=1e-9)
    assert sum(found.ms_by_rank) == pytest.approx(expect["sum_perf"], rel=1e-9)
    assert list(found.hbm_by_rank) == expect["hbm_by_rank"]
    assert list(found.ms_by_rank) == pytest.approx(expect["perf_by_rank"], rel=1e-9)
    assert list(found.ddr_by_machine) == expect["ddr_by_machine"]
    chosen = zip(tables, found.options, found.ranks, strict=True)
    assert {t.name: {"option": t.options[o].label, "rank": r} for t, o, r in chosen} == expect[
        "choice"
    ]


def _placement_table(table: dict[str, Any]) -> PlacementTable:
    t = take(table, ("name", "options"))
    ways = [take(option, ("label", "kind", "hbm", "ddr", "perf")) for option in t["options"]]
    return PlacementTable(
        t["name"],
        tuple(PlacementOption(w["label"], w["kind"], w["hbm"], w["ddr"], w["perf"]) for w in ways),
    )
