from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from hedgerow.planner.make_plan import plan
from hedgerow.planner.problem.options import Option, PlanError, TableOptions, variants
from hedgerow.planner.problem.table_spec import Feature, TableSpec
from hedgerow.planner.problem.topology import Topology
from hedgerow.planner.sizes.layout import LAYOUTS
from hedgerow.planner.sizes.storage import StepLoad, storage_of
from hedgerow.planner.solver.shortfall_text import explained
from hedgerow.planner.solver.solve import solve
from tests.planner.published_planner import TENTHS, baseline_ms

TABLES = [
    TableSpec(name="user", rows=40_000_000, dim=64, optimizer="adam", features=(Feature(1.0),)),
    TableSpec(name="item", rows=20_000_000, dim=64, optimizer="adam", features=(Feature(20.0),)),
    TableSpec(name="ctx", rows=1_000_000, dim=16, optimizer="adam", features=(Feature(5.0),)),
]
SMALL = Topology(world=8, local_world=8, hbm_per_device=629_145_600, ddr_per_machine=17_179_869_184)
WORKED = """\
Does not fit: 3 tables on 8 devices (1 machine).
  HBM  needs 3.57 GiB per device, has 0.59: short by 2.98 GiB     (host memory kept within its budget)
  host needs 40.1 GiB per machine, has 16.0: short by 24.1 GiB    (HBM kept within its budget)
  user (40 000 000 x 64, adam): no variant fits on its own; smallest HBM 0.11 GiB with 3.58 GiB host per rank
Would fit: 20 devices on 3 such machines (16 do not), or `user` with at most 7.6 M rows, or row-wise Adagrad on all three tables, or 3.6 GiB HBM per device."""  # noqa: E501


def _weigh(tables: Sequence[TableSpec], topology: Topology) -> list[TableOptions]:
    load, layout = StepLoad(batch=4096), LAYOUTS["strict"]
    found = []
    for spec in tables:
        ways = []
        for variant in variants(TENTHS[:-1], device=topology.device):
            storage = storage_of(spec, variant, topology, layout, load)
            ms = float(baseline_ms(spec, variant, topology, load))
            ways.append(Option(variant.label, storage.hbm, storage.ddr, ms))
        found.append(TableOptions(spec.name, tuple(ways)))
    return found


def _error(tables: Sequence[TableSpec], topology: Topology) -> PlanError:
    with pytest.raises(PlanError) as caught:
        solve(_weigh(tables, topology), topology.budget())
    return explained(caught.value, tables, topology, _weigh)


def test_the_worked_message_is_as_the_specification_has_it() -> None:
    error = _error(TABLES, SMALL)
    assert str(error) == WORKED
    assert error.never_fit == ("user",)
    assert len(error.hints) == 4
    hbm, ddr = error.shortfalls
    assert (hbm.short_joint, ddr.short_joint) == (3_199_890_040, 3_228_663_808)


def test_a_world_without_cards_speaks_of_ranks_and_host_memory_alone() -> None:
    world = Topology(world=4, local_world=2, ddr_per_machine=2**33, device="cpu")
    error = _error(TABLES, world)
    lines = str(error).splitlines()
    assert lines[0] == "Does not fit: 3 tables on 4 ranks (2 machines)."
    assert lines[1].startswith("  host needs 22.2 GiB per machine, has 8.00: short by 14.2 GiB")
    assert "HBM" not in lines[1]
    assert not any("HBM per device" in hint for hint in error.hints)
    assert error.hints[0] == "12 ranks on 6 such machines (10 do not)"


def test_a_memory_that_no_amount_helps_is_said_to_be_so() -> None:
    world = Topology(world=1, hbm_per_device=2**20, ddr_per_machine=2**40)
    error = _error(TABLES[2:], world)
    assert "host has 1,024 GiB per machine: no amount suffices, since HBM alone is short" in str(
        error
    )


def test_an_error_of_another_kind_stays_as_it_is() -> None:
    other = PlanError("no way", kind="no_options", never_fit=["a"])
    assert explained(other, TABLES, SMALL, _weigh) is other


def test_a_reserve_is_said_and_counted_in_what_would_fit() -> None:
    tables, machine = TABLES[:1], {"world": 2, "ddr_per_machine": 2**33}
    with pytest.raises(PlanError) as caught:
        plan(tables, Topology(hbm_per_device=2**30, **machine))
    text, (hbm, ddr) = str(caught.value), caught.value.shortfalls
    assert hbm.short_joint is not None
    assert ddr.short_joint is not None
    assert f"HBM by {int(hbm.short_joint):,} B per device (0 B if the other" in text
    assert f"host by {math.ceil(ddr.short_joint):,} B per rank (0 B if the other" in text
    assert "Kept free already: 15% of HBM and 0 B, 10% of host memory" in text
    card = float(caught.value.hints[-1].split()[0])
    for tenths, fit in ((0.0, True), (-0.1, False)):
        larger = Topology(hbm_per_device=round((card + tenths) * 2**30), **machine)
        if fit:
            assert plan(tables, larger).names == ("user",)
        else:
            with pytest.raises(PlanError):
                plan(tables, larger)
