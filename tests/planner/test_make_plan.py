"""Plans are made of options that are weighed, exactly chosen, and the same every time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.core.errors import ConfigError, StateError
from hedgerow.planner import Plan, PlanError, Reserve, TableSpec, Topology, plan
from hedgerow.planner.problem.key_stats import key_stats
from hedgerow.planner.problem.options import Mode
from hedgerow.planner.problem.topology import GIB
from hedgerow.planner.sizes.layout import LAYOUTS
from hedgerow.planner.sizes.storage import StepLoad, storage_of

from .sample import CARD, RESERVE, TABLES, cpu_plan, sample, table, topology


def test_every_table_keeps_its_own_routing_rule() -> None:
    planned = {line.name: line.dist_type for line in sample().tables}
    assert planned == {spec.name: spec.dist_type for spec in TABLES}
    assert planned["item_hist"] == "roundrobin"


def test_lines_are_what_the_layout_says() -> None:
    found = sample()
    assert sum(t.hbm_bytes for t in found.tables) <= found.limits.hbm
    assert sum(t.ddr_bytes for t in found.tables) <= found.limits.ddr_per_rank
    assert found.solver.total_ms == pytest.approx(sum(t.forecast.ms for t in found.tables))
    for spec, line in zip(TABLES, found.tables, strict=True):
        load = StepLoad(batch=4096)
        size = storage_of(spec, line.variant, found.topology, LAYOUTS["hedgerow"], load)
        assert (line.hbm_bytes, line.ddr_bytes) == (size.hbm, size.ddr)
        assert (line.rows_per_rank, line.row_bytes) == (size.rows_per_rank, size.row_bytes)


def test_the_reserve_comes_off_first() -> None:
    found = sample()
    assert found.budget.hbm_per_device == int(0.85 * 40 * GIB) - 3 * GIB // 2
    assert found.budget.ddr_per_machine == int(0.9 * 800 * GIB)
    assert found.limits.ddr_per_rank == Fraction(int(0.9 * 800 * GIB), 8)


def test_no_choice_of_three_tables_is_faster() -> None:
    tables = [table("a", 90_000_000, 64), table("b", 70_000_000, 32, 5), table("c", 10**8, 16)]
    machine = Topology(world=2, hbm_per_device=24 * GIB, ddr_per_machine=120 * GIB)
    found = plan(tables, machine, CARD)
    assert found.inputs is not None
    lists = [[c for c in found.inputs.choices[t.name] if not c.refused] for t in tables]
    fits = [
        sum(c.ms for c in pick)
        for pick in product(*lists)
        if sum(c.hbm for c in pick) <= found.limits.hbm
        and sum(c.ddr for c in pick) <= found.limits.ddr_per_rank
    ]
    assert found.solver.total_ms == pytest.approx(min(fits), abs=1e-9)
    assert found.solver.total_ms > sum(min(c.ms for c in one) for one in lists)


def test_without_cards_there_is_one_way() -> None:
    found = cpu_plan()
    assert found.inputs is not None
    assert [len(choices) for choices in found.inputs.choices.values()] == [1, 1]
    assert {t.variant.label for t in found.tables} == {"HOST_ONLY@0"}
    assert [t.hbm_bytes for t in found.tables] == [0, 0]
    assert "Host per machine" in found.table()
    assert "HBM per device" not in found.table()


def test_no_tables_make_an_empty_plan() -> None:
    found = plan([], topology(), CARD)
    assert found.solver.status == "empty"
    assert found.table().startswith("Plan for 0 tables")


def test_caches_that_would_thrash_are_refused_unless_asked_for() -> None:
    busy = table("busy", 1_000_000, 16, 50)
    found = plan([busy], topology(), CARD, batch=65_536)
    assert found.inputs is not None
    refused = {c.label: c.refused for c in found.inputs.choices["busy"] if c.refused}
    assert "CACHING@0.1" in refused
    assert "it would thrash" in refused["CACHING@0.1"]
    assert all(label.startswith("CACHING") for label in refused)
    with pytest.raises(ConfigError, match=r"pin of busy to CACHING@0\.1: a step touches"):
        found.what_if(pin={"busy": "CACHING@0.1"})
    allowed = plan([busy], topology(), CARD, batch=65_536, thrashing=True)
    assert allowed.what_if(pin={"busy": "CACHING@0.1"}).of("busy").load_factor == "0.1"


def test_what_the_user_fixed_is_kept() -> None:
    tables = [
        table("a", 10**6, 16, load_factor="0.3", modes=["HYBRID"]),
        table("b", 10**6, 16, modes=["HOST_ONLY"]),
        table("c", 10**6, 16, load_factor="1"),
    ]
    found = plan(tables, topology(), CARD, pin={"c": "HBM_ONLY"})
    labels = [line.variant.label for line in found.tables]
    assert labels == ["HYBRID@0.3", "HOST_ONLY@0", "HBM_ONLY@1.0"]


@pytest.mark.parametrize(
    ("pin", "rule"),
    [
        ({"none": "HYBRID"}, "'none', which is not in the plan; known: user_id"),
        ({"user_id": "FAST"}, "give a mode"),
        ({"user_id": "CACHING@0.33"}, "CACHING@0.3,"),
    ],
)
def test_pins_that_mean_nothing(pin: dict[str, str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        sample().what_if(pin=pin)


def test_two_tables_of_one_name() -> None:
    with pytest.raises(ConfigError, match="names must differ"):
        plan([table("a", 1, 1), table("a", 2, 2)], topology(), CARD)


def test_what_does_not_fit_says_what_is_missing() -> None:
    with pytest.raises(PlanError) as found:
        plan(TABLES, Topology(world=2, hbm_per_device=GIB, ddr_per_machine=GIB), CARD)
    assert found.value.kind == "infeasible"
    assert "Does not fit: 12 tables on 2 devices (1 machine)" in str(found.value)
    assert [s.memory for s in found.value.shortfalls] == ["hbm", "ddr"]
    assert "user_id" in found.value.never_fit


def test_what_if_memory_and_pins() -> None:
    less = sample().what_if(hbm=24 * GIB)
    assert less.solver.total_ms > sample().solver.total_ms
    assert less.topology.hbm_per_device == 24 * GIB
    assert less.budget.reserve == RESERVE
    assert less.fingerprint != sample().fingerprint
    tight = sample().what_if(ddr=700 * GIB)
    assert tight.budget.ddr_per_machine == int(0.9 * 700 * GIB)
    pinned = sample().what_if(pin={"tag_list": "HYBRID"})
    assert pinned.of("tag_list").mode is Mode.HYBRID
    assert pinned.solver.total_ms > sample().solver.total_ms


def test_what_if_of_a_stored_plan_is_that_of_the_made_one(tmp_path: Path) -> None:
    sample().save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json")
    assert read.what_if(hbm=24 * GIB) == sample().what_if(hbm=24 * GIB)
    assert read.what_if(world=32) == sample().what_if(world=32)


def test_what_if_world_and_batch_weigh_again() -> None:
    more = sample().what_if(world=32)
    assert more.topology.world == 32
    assert len(more.topology.machines) == 4
    assert more.of("user_id").rows_per_rank < sample().of("user_id").rows_per_rank
    assert more == plan(TABLES, replace(topology(), world=32), CARD, RESERVE)
    small = sample().what_if(batch=64)
    assert small.solver.total_ms < sample().solver.total_ms


def test_samples_reach_every_option_and_stay_out_of_the_file(tmp_path: Path) -> None:
    keys = np.random.default_rng(0).zipf(1.5, 20_000).astype(np.int64) % 1_000_000
    sampled = replace(table("a", 1_000_000, 16), stats=key_stats(keys))
    found, without = (plan([t], topology(), CARD) for t in (sampled, table("a", 1_000_000, 16)))
    assert found.inputs is not None
    assert without.inputs is not None
    pairs = zip(found.inputs.choices["a"], without.inputs.choices["a"], strict=True)
    assert [c.label for c, d in pairs if c.ms == d.ms] == []
    assert found.inputs.zipf_ms == {}
    assert set(without.inputs.zipf_ms) == {"0.8", "1.3"}
    found.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json")
    assert read.inputs is not None
    assert read.inputs.specs[0].stats is None
    assert read.what_if(hbm=2 * GIB).of("a") == found.what_if(hbm=2 * GIB).of("a")
    assert read.what_if(hbm=2 * GIB).fingerprint == found.what_if(hbm=2 * GIB).fingerprint
    with pytest.raises(StateError, match="needs the samples of a,"):
        read.what_if(batch=8)


def test_estimating_changes_nothing() -> None:
    specs: list[TableSpec] = [table("a", 10**6, 16), table("b", 10**5, 8)]
    copies = [replace(spec) for spec in specs]
    plan(specs, topology(), CARD)
    assert specs == copies


TWICE = """
import sys
sys.path.insert(0, {root!r})
from tests.planner.sample import TABLES, CARD, RESERVE, topology
from hedgerow.planner import plan
plan(TABLES, topology(), CARD, RESERVE).save({path!r})
"""


def test_the_same_input_gives_the_same_file_in_any_process(tmp_path: Path) -> None:
    """All but the line with the seconds it took."""
    texts = []
    for number in (1, 2):
        path = tmp_path / f"plan-{number}.json"
        code = TWICE.format(root=str(Path(__file__).parents[2]), path=str(path))
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
            env={"PYTHONHASHSEED": str(number), "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        lines = path.read_text().splitlines()
        texts.append([line for line in lines if '"seconds"' not in line])
    assert texts[0] == texts[1]
    assert len(texts[0]) > 100
    assert Plan.load(tmp_path / "plan-1.json") == Plan.load(tmp_path / "plan-2.json") == sample()


def test_a_reserve_larger_than_a_card_is_refused() -> None:
    with pytest.raises(ConfigError, match="reserve"):
        plan(TABLES, topology(), CARD, Reserve(hbm_bytes=100 * GIB))


def test_prices_count_options_that_do_not_fit_today() -> None:
    tables = [TableSpec(name="large", rows=49_000_000, dim=64, optimizer="adam")]
    found = plan(tables, Topology(world=2, hbm_per_device=2**33, ddr_per_machine=2**35))
    larger = found.what_if(hbm=2**34)
    assert larger.solver.total_ms < found.solver.total_ms
    assert found.solver.hbm_ms_per_gib > 0


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_is_seconds(limit: float) -> None:
    with pytest.raises(ConfigError, match="time_limit"):
        plan([], Topology(world=1, device="cpu"), time_limit=limit)


@pytest.mark.parametrize("wrong", [{"modes": []}, {"modes": ["VRAM"]}, {"load_factor": "nan"}])
def test_a_table_that_can_be_kept_in_no_way_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="table 'item'"):
        TableSpec(name="item", rows=9, dim=4, **wrong)


def test_a_world_of_absurd_size_is_refused_before_it_is_counted_out() -> None:
    with pytest.raises(ConfigError, match="world is 100000000; at most 1000000 ranks"):
        Topology(world=10**8)
