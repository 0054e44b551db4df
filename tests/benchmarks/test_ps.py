"""The benchmark of servers: every way gives the same rows, and Monolith's numbers hold."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import ps
from benchmarks.ps import DistributedPsBenchmark, run_monolith, small_lookups
from hedgerow.cli.app import app
from hedgerow.monolith.test_utils import BENCHMARK_TABLE, benchmark_table_config
from hedgerow.ps.shard import LocalShard
from hedgerow.tables.multi.host_tables import HostTables

pytestmark = pytest.mark.xdist_group("processes")


def test_numbers_of_monolith_and_traces(tmp_path: Path) -> None:
    results = run_monolith(3, 2_000, 1, tmp_path)
    assert [one["case"].split(",")[0] for one in results] == [
        "lookup",
        "lookup_dedup",
        "lookup_overhead",
        "apply_gradients",
        "apply_gradients_overhead",
    ]
    assert all(one["equal"] for one in results)
    for name in ("lookup", "lookup_dedup", "apply_gradients"):
        assert json.loads((tmp_path / name / "trace.json").read_text())["traceEvents"]


def local_benchmark() -> tuple[DistributedPsBenchmark, LocalShard]:
    shard = LocalShard(HostTables({BENCHMARK_TABLE: benchmark_table_config(4)}))
    return DistributedPsBenchmark([shard], ids=100, dim=4), shard


def test_the_overhead_modes_do_not_do_the_work() -> None:
    benchmark, shard = local_benchmark()
    with mock.patch.object(shard, "start_lookup", side_effect=AssertionError("looked up")):
        assert benchmark.lookup(real_run=False).equal
    with mock.patch.object(shard, "start_apply_gradients", side_effect=AssertionError("applied")):
        assert benchmark.apply_gradients(real_run=False).equal


def test_a_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, _ = local_benchmark()
    monkeypatch.setattr(ps, "_EXPECTED", 0.7)
    assert not benchmark.apply_gradients().equal
    wrong = torch.full((100, 4), 0.31)
    monkeypatch.setattr(torch.autograd, "grad", lambda loss, rows: (wrong,))
    assert not benchmark.apply_gradients(real_run=False).equal


def test_the_command_runs_monoliths_benchmark_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (ps.SERVERS, ps.IDS, ps.DIM) == (10, 1_000_000, 16)
    monkeypatch.setattr(ps, "SERVERS", 2)  # ten processes take half a minute to start
    words = ["bench", "ps", str(tmp_path), "--profile", "--monolith", "--quick", "--rounds", "1"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)["results"]
    assert len(results) == 5
    assert all(one["equal"] and one["case"].endswith("2 servers") for one in results)
    assert (tmp_path / "lookup" / "trace.json").exists()
    refused = CliRunner().invoke(app, [*words, "--peers", "sockets"])
    assert refused.exit_code != 0


def test_small_lookups_tell_p50_and_p99() -> None:
    for one in small_lookups(2, 20):
        assert 0 < one["p50_ms"] <= one["p99_ms"]


@pytest.mark.long
def test_other_ways_give_the_same_rows() -> None:
    """One without a library of its own; the others are compared in the same way."""
    done = CliRunner().invoke(
        app, ["bench", "ps", "--quick", "--rounds", "1", "--peers", "plain sockets", "--json"]
    )
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)["results"]
    assert {one["peer"] for one in results} == {"plain sockets"}
    assert all(one["equal"] for one in results)
