"""Plans as files: whole round trips, nothing lost, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.core.errors import FileDamagedError, FileMissingError, HedgerowError, InputError
from hedgerow.planner import Plan

from .sample import cpu_plan, sample

FIELDS = [
    "name",
    "mode",
    "load_factor",
    "sharding",
    "dist_type",
    "rows_per_rank",
    "row_bytes",
    "hbm_bytes",
    "ddr_bytes",
    "expected_hit_rate",
    "expected_ms",
    "group",
]


def _saved(folder: Path, plan: Plan | None = None) -> tuple[Path, dict[str, Any]]:
    path = folder / "plan.json"
    (plan or sample()).save(path)
    return path, json.loads(path.read_text())


def test_a_plan_survives_a_round_trip_to_the_byte(tmp_path: Path) -> None:
    path, values = _saved(tmp_path)
    read = Plan.load(path)
    assert read == sample()
    read.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []
    assert values["format"] == "placement-plan"
    assert values["version"] == 1
    assert len(values["fingerprint"]) == 64


def test_the_file_has_the_fields_of_version_1(tmp_path: Path) -> None:
    _, values = _saved(tmp_path)
    top = ["format", "version", "fingerprint", "topology", "budget", "solver", "calibration"]
    assert list(values) == [*top, "tables", "inputs"]
    assert list(values["budget"]) == ["hbm_per_device", "ddr_per_machine", "reserve"]
    solver = ["status", "lower_bound_ms", "total_ms", "gap", "seconds", "prices"]
    assert list(values["solver"]) == solver
    assert {"parameters", "device"} <= set(values["calibration"])
    for line in values["tables"]:
        assert list(line) == FIELDS


def test_a_table_of_one_rank_says_which(tmp_path: Path) -> None:
    first, *others = sample().tables
    whole = replace(sample(), tables=(replace(first, sharding="table_wise", rank=3), *others))
    path, values = _saved(tmp_path, whole)
    assert values["tables"][0]["rank"] == 3
    assert Plan.load(path) == whole


def test_unknown_fields_are_kept(tmp_path: Path) -> None:
    path, values = _saved(tmp_path)
    values["owner"] = {"team": "ads"}
    values["tables"][2]["replicated_keys"] = 256
    values["solver"]["threads"] = 1
    values["topology"]["racks"] = [1, 2]
    values["budget"]["note"] = "tight"
    values["inputs"]["seed"] = 5
    values["topology"]["links"]["rack"] = 1.5
    values["budget"]["reserve"]["loaders"] = 7
    values["solver"]["prices"]["nic"] = 0.5
    values["inputs"]["settings"]["pipeline"] = "prefetch"
    values["inputs"]["tables"][1]["tenant"] = {"name": "ads"}
    path.write_text(json.dumps(values))
    Plan.load(path).save(path)
    assert json.loads(path.read_text()) == values


def test_a_file_of_decisions_alone_is_a_plan(tmp_path: Path) -> None:
    path, values = _saved(tmp_path)
    del values["inputs"]
    path.write_text(json.dumps(values))
    read = Plan.load(path)
    assert read.inputs is None
    assert read.tables == sample().tables
    assert "item_hist" in read.table()
    with pytest.raises(HedgerowError, match="plan again"):
        read.explain("user_id")
    with pytest.raises(HedgerowError, match="plan again"):
        read.what_if(hbm=2**35)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path, values = _saved(tmp_path)
    path.write_text(json.dumps({**values, "version": 2}))
    with pytest.raises(InputError, match="version is 2; this hedgerow reads plans up to version 1"):
        Plan.load(path)


def _set(values: dict[str, Any], where: str, value: Any) -> None:
    *path, last = where.split(".")
    place: Any = values
    for key in path:
        place = place[int(key)] if isinstance(place, list) else place[key]
    if isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value


@pytest.mark.parametrize(
    ("where", "value", "rule"),
    [
        ("format", "other", "format is 'other'"),
        ("version", "1", "version is '1'; it must be a whole number"),
        ("version", True, "version is True"),
        ("fingerprint", None, "fingerprint is None"),
        ("tables", {}, "tables is a dict"),
        ("tables.0", [], r"tables\[0\] is a list"),
        ("tables.0.name", "", "name is ''"),
        ("tables.1.name", "user_id", "two tables are named 'user_id'"),
        ("tables.0.name", "new", "inputs and tables differ in new, user_id"),
        ("tables.0.mode", "FAST", "mode is 'FAST'; known: HBM_ONLY"),
        ("tables.0.load_factor", "1/0", "load_factor is '1/0'"),
        ("tables.0.load_factor", 0.5, "load_factor is 0.5; it must be a text"),
        ("tables.2.load_factor", "0.5", "HBM_ONLY has 1"),
        ("tables.0.dist_type", "modulo", "dist_type is 'modulo'"),
        ("tables.0.sharding", "column", "sharding is 'column'"),
        ("tables.0.rank", 16, "rank is 16 of 16 ranks"),
        ("tables.0.rows_per_rank", -1, "rows_per_rank is -1"),
        ("tables.0.hbm_bytes", 1.5, "hbm_bytes is 1.5; it must be a whole number"),
        ("tables.0.ddr_bytes", 2**63, "ddr_bytes"),
        ("tables.0.expected_ms", "fast", "expected_ms is 'fast'"),
        ("topology", None, "topology is a NoneType"),
        ("topology.world", 0, "Topology.world is 0"),
        ("topology.world", 2**60, "at most 1,000,000 ranks"),
        ("topology.hbm_per_device", [1, 2], "has 2 sizes for 16"),
        ("topology.links", 7, "links is 7"),
        ("topology", {}, "topology is .*world"),
        ("topology.ddr_per_machine", None, "topology is .*None"),
        ("budget.reserve.ddr_fraction", None, "reserve is .*None"),
        ("inputs.settings.layout", [], "settings.layout is"),
        ("inputs.settings.batch", 0, "batch is 0"),
        ("inputs.settings.time_limit", None, "inputs: "),
        ("inputs.tables.0.optimizer", None, "optimizer is None; it must be a text"),
        ("inputs.tables.0.name", 5, "name is 5; it must be a text"),
        ("budget.reserve.hbm_fraction", 2, "Reserve.hbm_fraction is 2"),
        ("solver.prices", [], "solver.prices is a list"),
        ("solver.total_ms", None, "total_ms is None"),
        ("calibration", "none", "calibration is a str"),
        ("inputs.tables.0.options", [["A"]], "option"),
        ("inputs.tables.0.options", None, "objects with options"),
        ("inputs.tables.0.rows", 0, "TableSpec.rows is 0"),
        ("inputs.tables.0.features", [[1]], "features"),
        ("inputs.settings", None, "inputs.settings"),
        ("inputs.zipf_ms", {"0.8": "x"}, "inputs"),
    ],
)
def test_damage_is_named(tmp_path: Path, where: str, value: Any, rule: str) -> None:
    path, values = _saved(tmp_path)
    _set(values, where, value)
    path.write_text(json.dumps(values))
    with pytest.raises(FileDamagedError, match=rule) as found:
        Plan.load(path)
    assert str(path) in str(found.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "null", '{"format": NaN}', "[" * 100_000, "\ud800", '{"version": 1e999}'],
)
def test_what_is_no_plan_at_all(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(FileDamagedError, match=r"plan\.json"):
        Plan.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match="hedgerow plan"):
        Plan.load(tmp_path / "none.json")


def test_a_save_that_fails_leaves_the_old_plan(tmp_path: Path) -> None:
    path, _ = _saved(tmp_path)
    before = path.read_bytes()
    broken = replace(sample(), calibration={"parameters": object()})
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_loading_needs_no_solver(tmp_path: Path) -> None:
    path, _ = _saved(tmp_path, cpu_plan())
    code = (
        "import sys; sys.modules['scipy'] = None; sys.modules['matplotlib'] = None; "
        "import hedgerow as hr; "
        f"plan = hr.planner.Plan.load({str(path)!r}); "
        "assert plan.of('user').mode == 'HOST_ONLY'; print(plan.fingerprint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == cpu_plan().fingerprint
