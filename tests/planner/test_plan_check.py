"""A plan is of its tables: what differs is named, and rows may drift as far as memory goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hedgerow.planner import Plan, PlanMismatchError, Reserve, TableSpec, Topology, plan
from hedgerow.planner.problem.topology import GIB

from .sample import CARD, TABLES, sample, table


def _with(name: str, **changes: object) -> list[TableSpec]:
    return [replace(t, **changes) if t.name == name else t for t in TABLES]


def test_the_same_tables_in_any_order() -> None:
    assert sample().check(TABLES[::-1]).drifted == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 32}, "user_id: dim 64 in the plan, 32 now"),
        ({"optimizer": "sgd"}, "user_id: optimizer adam in the plan, sgd now"),
        ({"dist_type": "roundrobin"}, "dist_type hash_roundrobin in the plan, roundrobin now"),
        ({"dtype": "fp16"}, "dtype fp32 in the plan, fp16 now"),
        ({"counter_rows": 5}, "counter_rows 0 in the plan, 5 now"),
        ({"rows": 5}, "rows 900 000 000 in the plan, 5 now.*--accept-drift"),
    ],
)
def test_what_differs_is_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(PlanMismatchError, match=words):
        sample().check(_with("user_id", **changes))


def test_all_differences_are_listed() -> None:
    others = [*_with("user_id", dim=8)[1:], table("new", 5, 4)]
    others[0] = replace(others[0], dim=8, optimizer="sgd")
    with pytest.raises(PlanMismatchError) as found:
        sample().check(others)
    for words in ("new: not in the plan", "user_id: in the plan, but", "item_id: dim", "optimizer"):
        assert words in str(found.value)
    assert "--accept-drift" not in str(found.value)


def test_how_a_table_is_read_may_change() -> None:
    sample().check(_with("user_id", features=(), group="g", modes=["HBM_ONLY"]))


def _plan() -> Plan:
    """900 of 1,000 MiB may be used, and nearly all of that is."""
    machine = Topology(world=1, ddr_per_machine=1000 * 2**20, device="cpu")
    return plan([table("t", 5_400_000, 8)], machine, CARD, batch=1)


def test_rows_may_drift_as_far_as_the_reserve_goes() -> None:
    found = _plan()
    used = found.of("t").ddr_bytes
    assert 0.75 < used / found.limits.ddr_per_rank < 1
    most = int(5_400_000 * 1000 * 2**20 / used)
    assert found.check([table("t", most - 1, 8)], accept_drift=True).drifted == ("t",)
    assert found.check([table("t", 1, 8)], accept_drift=True).drifted == ("t",)
    with pytest.raises(PlanMismatchError, match=r"beyond the reserve: t would take 1\.01 GiB"):
        found.check([table("t", int(most * 1.03), 8)], accept_drift=True)


def test_only_rows_may_drift() -> None:
    with pytest.raises(PlanMismatchError, match="dim 8 in the plan, 9 now"):
        _plan().check([table("t", 5_400_001, 9)], accept_drift=True)


def test_fingerprints_are_of_tables_machines_and_calibration() -> None:
    machine = Topology(world=1, ddr_per_machine=GIB, device="cpu")
    base = plan([table("t", 100, 8)], machine, CARD).fingerprint
    slower = replace(CARD, parameters=replace(CARD.parameters, overlap=2.0))
    others = [
        plan([table("t", 101, 8)], machine, CARD),
        plan([table("t", 100, 8, 2.0)], machine, CARD),
        plan([table("t", 100, 8)], replace(machine, ddr_per_machine=2 * GIB), CARD),
        plan([table("t", 100, 8)], machine, slower),
    ]
    assert len({base, *(other.fingerprint for other in others)}) == 5
    kept = plan([table("t", 100, 8)], machine, CARD, Reserve(ddr_fraction=0.5))
    assert kept.fingerprint == base
