"""Files that version 0.1 wrote: a checkpoint, increments, a bundle, a plan, a calibration, logs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.ps.remote_shard import connect
from hedgerow.ps.server_tables import ServerTables
from hedgerow.routing.router import Router
from hedgerow.serving.bundle import load_bundle

from .write_v0_1 import ADAM, IDS, Model, batch

ARCHIVE = Path(__file__).with_name("v0_1.tar.gz")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "v0_1"


def expected(files: Path, name: str) -> Any:
    return json.loads((files / "expected.json").read_text())[name]


def run(*words: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "hedgerow", *words]
    return subprocess.run(command, check=True, cwd=cwd, capture_output=True, text=True).stdout


def test_checkpoint_of_a_model_goes_on_training(files: Path) -> None:
    known = expected(files, "model")
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with pytest.raises(hr.HedgerowError, match="trusted"):
        hr.load(model, files / "model", optimizer=optimizer)
    assert hr.load(model, files / "model", optimizer=optimizer, trusted=True).step == 6
    model.eval()
    predicted = model(batch(known["names"], 0))
    torch.testing.assert_close(predicted, torch.tensor(known["predicted"]))
    model.train()
    losses = []
    for number in (6, 7):
        loss = (model(batch(known["names"], number)) - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(known["next_losses"], rel=1e-5)


def test_bundle_gives_the_same_answers(files: Path) -> None:
    known = expected(files, "model")
    served = load_bundle(files / "bundle" / "entry" / "3", "entry", trusted=True)
    ids = batch(known["names"], 0)
    ask: dict[str, torch.Tensor] = {}
    for name in known["names"]:
        one = ids.select([name])
        ask[name], ask[f"{name}_lengths"] = one.values, one.offsets.diff()
    answer = served.signatures["serving_default"].run(ask)
    assert served.version == 3
    torch.testing.assert_close(next(iter(answer.values())), torch.tensor(known["predicted"]))


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_base_and_increments_replay_on_other_numbers_of_shards(files: Path, shards: int) -> None:
    known = expected(files, "chain")
    config = hr.TableConfig(
        "item", (hr.Segment(2, hr.Uniform(0.3), hr.Adam(lr=0.1, **ADAM)),), seed=9
    )
    found: dict[int, list[float]] = {}
    for shard in range(shards):
        table = hr.HostTable(config)
        router = Router("hash_roundrobin", shards)
        hr.load([table], files / "chain", router=router, shard=shard)
        has, rows = table.contains(torch.tensor(IDS)), table.lookup(torch.tensor(IDS)).rows_of()
        for number, row in enumerate(rows.tolist()):
            if has[number]:
                assert IDS[number] not in found
                found[IDS[number]] = row
    assert found == {
        one: row
        for one, row, there in zip(IDS, known["rows"], known["contains"], strict=True)
        if there
    }


@contextmanager
def servers(folder: Path, shards: int) -> Iterator[list[str]]:
    command = [sys.executable, "-m", "hedgerow", "ps", "--durability", "log"]
    command += ["--checkpoint", str(folder)]
    started = [
        subprocess.Popen([*command, "--shard", f"{i}/{shards}"], stdout=subprocess.PIPE, text=True)
        for i in range(shards)
    ]
    try:
        yield [one.stdout.readline().strip() for one in started if one.stdout]
    finally:
        for one in started:
            one.send_signal(signal.SIGTERM)
            with one:
                one.wait(60)


def test_servers_go_on_from_a_log_and_from_a_checkpoint(files: Path) -> None:
    config = hr.TableConfig("item", (hr.Segment(2, hr.Uniform(0.3), hr.Adagrad(lr=0.1)),), seed=4)
    with servers(files / "servers", 2) as addresses:
        shards = connect(addresses, {"item": config})
        rows = ServerTables(shards, {"item": config}).lookup(torch.tensor(IDS)).rows_of()
        for shard in shards:
            shard.close()
    assert rows.tolist() == expected(files, "servers")["rows"]


def test_run_goes_on_and_predicts(files: Path) -> None:
    run("train", "--resume", "--trusted", "--out", "run", "--steps", "8", cwd=files)
    lines = (files / "run" / "log.jsonl").read_text().splitlines()
    assert max(json.loads(line).get("step", 0) for line in lines) == 8
    assert "auc" in run("predict", "run", cwd=files).lower()


def test_plan_is_read_and_explained(files: Path) -> None:
    plan = hr.planner.Plan.load(files / "plan.json")
    assert plan.names == ("user", "item")
    assert "item" in plan.explain("item")
    assert "user" in run("explain", "plan.json", cwd=files)


def test_calibration_prices_a_plan(files: Path) -> None:
    size = ("--ranks", "2", "--hbm", "0", "--host", "64GiB")
    run(
        "plan",
        "tables.toml",
        *size,
        "--calibration",
        "calibration.json",
        "--out",
        "b.json",
        cwd=files,
    )
    assert hr.planner.Plan.load(files / "b.json").names == ("user", "item")
