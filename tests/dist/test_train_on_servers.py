"""`hedgerow train`, the Trainer, `hr.stats` and `hr.summary` where servers hold the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.nn.embedding_modules import collections_of, servers_of
from hedgerow.train.checkpoints import Checkpoints
from hedgerow.train.evaluate import evaluate
from hedgerow.train.loop import LoopSchedule, Trainer
from hedgerow.train.run_folder import load_run
from tests.ps.servers import servers

from .launched_servers import launched

pytestmark = pytest.mark.xdist_group("processes")
JOB = """
[data]
source = "clicks"
steps = 30
test_steps = 4
batch_size = 64
[model]
dim = 4
[train]
log_every = 10
epochs = 1
threads = 1
[checkpoint]
every_steps = 20
"""


class Events:
    """A sink that keeps what it is given, but for the time."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def write(self, event: Mapping[str, Any]) -> None:
        left_out = ("seconds", "path")
        self.found.append({k: v for k, v in event.items() if k not in left_out})

    def close(self) -> None:
        return


def model_of() -> torch.nn.Module:
    torch.manual_seed(0)
    return hr.models.DeepFM([hr.Table("user", 4), hr.Table("item", 4)], dense=4)


def trainer_of(model: torch.nn.Module, folder: Path, epochs: int = 1) -> tuple[Trainer, Events]:
    events = Events()
    made = Trainer(
        model,
        torch.optim.Adam(model.parameters(), lr=0.01),
        hr.data.clicks(batch_size=32, steps=20),
        test=hr.data.clicks(batch_size=32, steps=4, seed=9),
        schedule=LoopSchedule(epochs=epochs, log_every=5),
        checkpoints=Checkpoints(folder, every_steps=10),
        sinks=[events],
    )
    return made, events


@contextmanager
def on_servers(model: torch.nn.Module, n: int) -> Iterator[torch.nn.Module]:
    with servers(n) as started:
        yield hr.distribute(model, servers=started["ps"])
        group = servers_of(model)
        assert group is not None
        group.close()


def test_a_trainer_on_servers_learns_what_one_process_learns_and_goes_on(tmp_path: Path) -> None:
    here, wanted = trainer_of(model_of(), tmp_path / "here", epochs=2)
    here.run()
    with on_servers(model_of(), 2) as model:
        there, found = trainer_of(model, tmp_path / "there")
        assert there.run().why == "done"
    with on_servers(model_of(), 3) as model:  # other servers, with no rows
        there, more = trainer_of(model, tmp_path / "there", epochs=2)
        assert there.resume()
        assert there.run().why == "done"
        assert evaluate(model, hr.data.clicks(batch_size=32, steps=4, seed=9)) == there._tested
        lines = [e for e in (*found.found, *more.found) if e["kind"] in ("train", "eval")]
        assert lines == [e for e in wanted.found if e["kind"] in ("train", "eval")]
        assert lines[-1]["rows"] > 100


def test_stats_and_summary_of_servers_are_those_of_one_process(tmp_path: Path) -> None:
    plain = model_of()
    trainer_of(plain, tmp_path / "a")[0].run()
    wanted = hr.stats(plain)
    with on_servers(model_of(), 2) as model:
        trainer_of(model, tmp_path / "b")[0].run()
        found = hr.stats(model)
        assert isinstance(found, dict)
        assert isinstance(wanted, dict)
        assert list(found) == list(wanted) == ["item", "user"]
        for name, seen in found.items():
            assert list(seen) == list(wanted[name])
            for key in ("name", "rows", "row_bytes", "uncompressed_bytes", "inserted", "erased"):
                assert seen[key] == wanted[name][key]
            assert seen["rows"] > 0
            assert 0 < seen["load_factor"] < 1
            assert seen["total_bytes"] >= seen["row_bytes"]
        shown = hr.summary(model)
        assert "rows on 2 servers" in shown
        store = collections_of(model)[0].store
        item = next(line for line in shown.splitlines() if line.startswith("item"))
        assert str(store.stats()["item"]["rows"]) in item.split()
        held = store.memory()
        assert held.row_bytes == sum(seen["row_bytes"] for seen in found.values())
        assert held.total_bytes >= held.row_bytes
        assert store.table(0).stats() == {"item": found["item"]}


def test_a_job_of_two_workers_on_two_servers_and_on_three(tmp_path: Path) -> None:
    job, out = tmp_path / "job.toml", tmp_path / "run"
    job.write_text(JOB)
    with launched(
        "--servers", 2, "--workers", 2, "-m", "hedgerow", "train", job, "--out", out
    ) as run:
        assert run.status() == 0, run.lines
        assert not [line for line in run.lines if line.startswith("[1] step")]
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    trained = [e for e in events if e["kind"] == "train"]
    assert [(e["step"], e["samples"]) for e in trained] == [(10, 640), (20, 1280), (30, 1920)]
    first = load_run(out)
    assert first.step == 30
    rows = sum(sum(c.row_counts().values()) for c in collections_of(first.model))
    assert rows == trained[-1]["rows"] > 100
    with launched(
        *("--servers", 3, "--workers", 2, "-m", "hedgerow", "train", "--resume", "--out", out),
        *("--epochs", 3),
    ) as run:
        assert run.status() == 0, run.lines
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [e["step"] for e in events if e["kind"] == "train"] == [10 * n for n in range(1, 10)]
    tests = [e["loss"] for e in events if e["kind"] == "eval"]
    assert len(tests) == 3
    assert tests[-1] < tests[0]
    assert load_run(out).step == 90


def test_compare_does_not_go_with_servers(tmp_path: Path) -> None:
    with launched(
        *("--servers", 1, "-m", "hedgerow", "train", "--data", "clicks", "--compare"),
        *("--steps", 10, "--out", tmp_path / "run"),
    ) as run:
        assert run.status() == 2, run.lines
        run.line("--compare trains a second model")
    assert not (tmp_path / "run").exists()
