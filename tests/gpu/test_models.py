"""Models on a GPU: the CPU's numbers, steps that wait for nothing, plans, NCCL and two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import hedgerow as hr
from hedgerow import native
from hedgerow.launch.process_group import GroupSettings, process_group
from hedgerow.nn.distribute import own_group
from hedgerow.planner.problem.options import Mode, Variant
from hedgerow.routing.router import Router
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.sharding.exchange import Exchange
from hedgerow.tables.multi.device_tables import DeviceTables
from hedgerow.tables.store import TableKeys
from hedgerow.train.job import job_of
from hedgerow.train.job_parts import build, schedule
from hedgerow.train.loop import Trainer

from ..support import table_config
from ..waiting import without_waiting
from .training_work import batches, model, rows, same_rows, step

ROOT = Path(__file__).parents[2]
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "DtoH")


@pytest.fixture(autouse=True)
def _needs_the_core() -> None:
    try:
        native.threads()
    except ImportError:
        pytest.skip("THE C++ CORE IS NOT BUILT: models begin with host tables")


def _trained(device: torch.device | str) -> tuple[Any, list[float]]:
    made = model().to(device)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.05)
    losses = [step(made, optimizer, batch.to(device)) for batch in batches()]
    return made, [float(loss) for loss in losses]


def test_a_model_on_the_gpu_learns_what_it_learns_on_the_cpu(device: torch.device) -> None:
    here, wanted = _trained("cpu")
    there, found = _trained(device)
    assert isinstance(there.bags.store, DeviceTables)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=1e-4, atol=1e-5)
    same_rows(rows(there), rows(here))


def test_a_training_step_does_not_wait_for_the_gpu(device: torch.device, tmp_path: Path) -> None:
    made = model().to(device)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.01)
    there = [batch.to(device) for batch in batches(6)]
    for batch in there[:3]:  # compiles
        step(made, optimizer, batch)
    torch.cuda.synchronize()
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds) as trace, without_waiting(device):
        for batch in there[3:]:
            step(made, optimizer, batch)
    trace.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    seen = Counter(event["name"] for event in events if "name" in event)
    assert any("_pool" in name for name in seen), "the trace has no kernel of ours"
    # The profiler itself waits once when it starts and when it ends.
    spans = [e for e in events if e.get("name", "").startswith("aten::") and "ts" in e]
    first, last = min(e["ts"] for e in spans), max(e["ts"] + e.get("dur", 0) for e in spans)
    inside = [e for e in events if "ts" in e and first <= e["ts"] <= last]
    waits = [e["name"] for e in inside if any(word in e["name"] for word in WAITS)]
    assert waits == []


def test_a_plan_puts_tables_where_it_says(device: torch.device) -> None:
    machine = hr.planner.Topology(world=1, ddr_per_machine=8 * 2**30, device="cpu")
    planned = hr.plan(model(), machine)
    lines = tuple(
        replace(t, variant=Variant(Mode.HBM_ONLY, "1.0")) if t.name == "user" else t
        for t in planned.tables
    )
    made = hr.distribute(model(), plan=replace(planned, tables=lines))
    store = made.bags.store
    assert isinstance(store, DeviceTables)
    assert [store.is_on_device(k) for k in range(2)] == [name == "user" for name in store.names]
    optimizer = torch.optim.SGD(made.parameters(), lr=0.05)
    for batch in batches():
        step(made, optimizer, batch.to(device))
    same_rows(rows(made), rows(_trained("cpu")[0]))


@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:nccl", "gloo"])
def test_tables_over_a_group_of_one(device: torch.device, backend: str) -> None:
    configs = {
        name: table_config(hr.Sgd(lr=0.5), dim=dim, name=name, not_finite="drop")
        for name, dim in (("a", 4), ("b", 6))
    }
    ids = torch.tensor([5, 7, 5, -1, 9, 7], device=device)
    keys, grads = TableKeys(ids, (0, 4, 6)), torch.arange(28.0, device=device)
    found = {}
    settings = GroupSettings(backend=backend, timeout_s=60)
    for over in ("nobody", backend):
        alone = over == "nobody"
        with nullcontext() if alone else process_group(settings=settings):
            store: Any = DeviceTables(configs, device=device, capacity_rows={"a": 64, "b": 64})
            if not alone:
                exchange = Exchange(own_group(device))
                routers = [Router("hash_roundrobin", 1)] * 2
                store = AllToAllTables(store, routers, exchange, reduce="sum")
            at = store.lookup(keys, missing="initializer")
            store.apply_gradients(at, grads)
            found[over] = store.lookup(keys).rows.cpu()
    torch.testing.assert_close(found[backend], found["nobody"])


def test_two_ranks_on_one_gpu_are_one_process(device: torch.device, tmp_path: Path) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "tests.gpu.two_ranks", str(tmp_path)),
        ],
        cwd=ROOT,
        env={**os.environ, "EMB_DIST_BACKEND": "gloo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    parts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    joined: dict[str, dict[int, list[float]]] = {}
    for part in parts:
        for name, mine in part.items():
            ids = {int(id_): row for id_, row in mine.items()}
            assert not joined.setdefault(name, {}).keys() & ids.keys(), "two ranks own an id"
            joined[name] |= ids
    same_rows(joined, rows(_trained(device)[0]))


def test_a_job_trains_on_the_gpu(device: torch.device) -> None:
    outcomes = {}
    for where in ("cpu", "cuda"):
        job = job_of(
            {
                "data": {"source": "clicks", "steps": 40, "batch_size": 256},
                "train": {"device": where, "log_every": 10},
            }
        )
        parts = build(job)
        trainer = Trainer(
            parts.model, parts.optimizer, parts.train, test=parts.train, schedule=schedule(job)
        )
        outcomes[where] = trainer.run()
    assert outcomes["cuda"].step == 40
    assert outcomes["cuda"].test["loss"] == pytest.approx(outcomes["cpu"].test["loss"], rel=1e-3)


def test_partitioned_tables_on_the_gpu(device: torch.device) -> None:
    from ..monolith.test_partitioned_factory import make, train

    wanted = train(make(0, True))
    table = make(1, True, enable_gpu_emb=True, unique=True)
    assert isinstance(table.shards.local, DeviceTables)
    for name, value in train(table).items():
        assert value.is_cuda
        torch.testing.assert_close(value.cpu(), wanted[name])
