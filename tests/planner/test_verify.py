"""What was measured beside what was planned, and whether to plan again."""

from __future__ import annotations

import pytest

from hedgerow.core.errors import InputError, UnknownNameError
from hedgerow.planner import Observed, Topology, plan
from hedgerow.planner.problem.topology import GIB

from .sample import CARD, sample, table


def test_a_plan_that_comes_true_is_kept() -> None:
    seen = {t.name: Observed(t.forecast.ms, t.forecast.hit_rate) for t in sample().tables}
    found = sample().verify(seen)
    assert [line.ratio for line in found.lines] == pytest.approx([1.0] * 12)
    assert found.gain == pytest.approx(0, abs=1e-9)
    assert not found.worth_planning
    assert "keep it" in found.text()
    (cached,) = (t for t in sample().tables if t.name == "item_id")
    hits = f"{100 * cached.forecast.hit_rate:.1f}%"
    assert hits not in ("0.0%", "100.0%")
    assert f"hits {hits}, planned {hits}" in found.text()


def test_a_table_that_is_slower_may_be_worth_another_plan() -> None:
    """What stands in HBM was thought to be the one worth it; now the other is."""
    ends = ["HBM_ONLY", "HOST_ONLY"]
    tables = [table(n, 60_000_000, 64, i, modes=ends) for n, i in (("a", 30), ("b", 25))]
    machine = Topology(world=1, hbm_per_device=75 * GIB, ddr_per_machine=200 * GIB)
    found = plan(tables, machine, CARD, batch=16_384)
    a, b = found.of("a").forecast, found.of("b").forecast
    assert found.of("a").mode != found.of("b").mode
    seen = found.verify({"a": Observed(a.ms * 0.1), "b": Observed(b.ms * 4)})
    assert seen.gain is not None
    assert seen.gain > 0.05
    assert seen.worth_planning
    assert seen.text().endswith("plan again")
    assert "(4.00x)" in seen.text()


def test_groups_are_measured_as_one() -> None:
    tables = [table("a", 10**6, 16, group="g"), table("b", 10**6, 16, group="g")]
    found = plan(tables, Topology(world=1, hbm_per_device=GIB, ddr_per_machine=GIB), CARD)
    both = sum(t.forecast.ms for t in found.tables)
    seen = found.verify({"g": Observed(2 * both)})
    assert seen.lines[0].said_ms == pytest.approx(both)
    assert seen.lines[0].ratio == pytest.approx(2)


def test_what_is_no_measurement() -> None:
    with pytest.raises(InputError, match=r"Observed\.ms"):
        Observed(float("nan"))
    with pytest.raises(InputError, match="hit_rate"):
        Observed(1.0, 2.0)
    with pytest.raises(UnknownNameError, match="unknown table or group 'x'"):
        sample().verify({"x": Observed(1)})
