"""What changes between plans, what must move for it, and when a job keeps its plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hedgerow.planner import Plan, Topology, keep_plan, plan
from hedgerow.planner.problem.options import Mode, Variant
from hedgerow.planner.problem.topology import GIB

from .sample import CARD, cpu_plan, sample, table, topology


def _as(plan: Plan, label: str, **more: object) -> Plan:
    """A plan of one table in another form."""
    mode, factor = label.split("@")
    line = replace(plan.tables[0], variant=Variant(Mode(mode), factor), **more)
    return replace(plan, tables=(line, *plan.tables[1:]))


def _one(rows: int = 1000, **more: object) -> Plan:
    return cpu_plan(table("t", rows, 8, **more), world=4)


def test_nothing_changes() -> None:
    found = sample().diff(sample())
    assert found.changes == ()
    assert found.text() == "no table changes"


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ("HYBRID@0.5", "HYBRID@0.2", 0.3),
        ("HBM_ONLY@1.0", "HOST_ONLY@0", 1),
        ("HOST_ONLY@0", "HYBRID@0.4", 0.4),
        ("HOST_ONLY@0", "CACHING@0.1", 0.1),
        ("CACHING@0.1", "CACHING@0.3", 0.2),
        ("CACHING@0.3", "CACHING@0.1", 0),
        ("HBM_ONLY@1.0", "CACHING@0.1", 1),
        ("HYBRID@0.4", "CACHING@0.1", 0.4),
        ("CACHING@0.1", "HBM_ONLY@1.0", 1),
        ("CACHING@0.1", "HOST_ONLY@0", 0.1),
    ],
)
def test_rows_that_change_their_memory_move(before: str, after: str, share: float) -> None:
    base = _one()
    found = _as(base, before).diff(_as(base, after))
    row_bytes = base.tables[0].row_bytes
    assert found.moved_bytes == round(1000 * row_bytes * share)
    (change,) = found.changes
    assert change.before.startswith(before)
    assert change.after.startswith(after)
    assert f"{before} hash_roundrobin over 4 -> {after}" in found.text()


@pytest.mark.parametrize(
    ("rule", "world", "share"),
    [
        ("hash_roundrobin", 8, 1 / 2),
        ("roundrobin", 2, 1 / 2),
        ("hash_roundrobin", 3, 3 / 4),
        ("continuous", 2, 3 / 4),
        ("continuous", 8, 7 / 8),
    ],
)
def test_rows_that_change_their_owner_move(rule: str, world: int, share: float) -> None:
    """Counted on all ids, with the owners of both worlds."""
    import torch

    from hedgerow.routing.router import Router

    rows = 16_000
    before = cpu_plan(table("t", rows, 8, dist_type=rule), world=4)
    after = cpu_plan(table("t", rows, 8, dist_type=rule), world=world)
    found = before.diff(after)
    assert found.moved_bytes == pytest.approx(rows * before.tables[0].row_bytes * share, rel=1e-3)
    ids = torch.arange(rows)
    owners = [Router(rule, n, rows=rows).owners(ids) for n in (4, world)]
    counted = (owners[0] != owners[1]).float().mean().item()
    assert counted == pytest.approx(share, abs=0.01)


def test_tables_that_come_and_go_are_named() -> None:
    found = cpu_plan(table("a", 9, 2)).diff(cpu_plan(table("b", 9, 2)))
    new, gone = found.changes
    assert (new.name, new.before, new.moved_bytes) == ("b", "absent", 0)
    assert (gone.name, gone.after) == ("a", "absent")


def test_a_table_that_gets_one_rank_for_its_own() -> None:
    base = _one()
    whole = _as(base, "HOST_ONLY@0", sharding="table_wise", rank=2)
    total = 1000 * base.tables[0].row_bytes
    assert base.diff(whole).moved_bytes == total * 3 // 4
    assert whole.diff(base).moved_bytes == total * 3 // 4
    other = _as(base, "HOST_ONLY@0", sharding="table_wise", rank=1)
    assert whole.diff(other).moved_bytes == total
    copies = _as(base, "HOST_ONLY@0", sharding="copy")
    assert copies.diff(base).moved_bytes == 0
    assert "on every rank" in base.diff(copies).text()


def test_a_plan_is_kept_unless_another_gains_more_than_the_threshold() -> None:
    old = sample()
    richer = old.what_if(hbm=80 * GIB)
    gain = 1 - richer.solver.total_ms / old.solver.total_ms
    assert 0 < gain < 0.05
    kept = keep_plan(old, richer)
    assert kept.is_old
    assert kept.gain == pytest.approx(gain)
    assert [t.variant for t in kept.plan.tables] == [t.variant for t in old.tables]
    assert kept.plan.topology == richer.topology
    assert kept.plan.solver.status == "kept"
    replaced = keep_plan(old, richer, threshold=gain / 2)
    assert not replaced.is_old
    assert replaced.plan is richer


def test_a_plan_that_does_not_fit_any_more_is_not_kept() -> None:
    poorer = sample().what_if(hbm=20 * GIB)
    found = keep_plan(sample(), poorer)
    assert found.plan is poorer
    assert "does not fit" in found.reason
    assert keep_plan(sample(), cpu_plan()).reason.endswith("the tables are others")
    one, two = (cpu_plan(table("t", 9, 2), world=world) for world in (1, 2))
    assert "it is of 1 ranks, not 2" in keep_plan(one, two).reason
    assert (
        "another owner" in keep_plan(two, cpu_plan(table("t", 9, 2, dist_type="roundrobin"))).reason
    )


def test_an_option_that_is_gone_is_not_kept() -> None:
    fewer = plan([table("t", 10**8, 64)], _card(), CARD, factors=["0.5"])
    more = plan([table("t", 10**8, 64)], _card(), CARD, factors=["0.25"])
    assert fewer.tables[0].load_factor == "0.5"
    assert "no CACHING@0.5 now" in keep_plan(fewer, more).reason


def _card() -> Topology:
    return replace(topology(56 * GIB), world=1, local_world=1)
