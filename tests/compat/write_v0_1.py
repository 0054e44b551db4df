"""Writes what `tests/compat/v0_1.tar.gz` holds. Version 0.1 ran it; later versions only read it.

Run as `python -m tests.compat.write_v0_1 FOLDER` from the root of a checkout of version 0.1.
It is kept as the record of what the files hold. It uses the names of version 0.1.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hedgerow as hr

IDS = [0, -1, 1, -(2**63), 2**63 - 1, 7, 8, 4711, 2**40 + 3, -12345]
# Version 0.1 always counted the updates of each row, and had no name for that.
ADAM: Any = {"bias_correction": "row"} if hasattr(hr.Adam, "bias_correction") else {}
OPTIMIZERS = {
    "sgd": hr.Sgd(lr=0.1, weight_decay=0.01),
    "momentum": hr.Momentum(lr=0.1, nesterov=True),
    "adagrad": hr.Adagrad(lr=0.1),
    "row_adagrad": hr.RowAdagrad(lr=0.1),
    "adam": hr.Adam(lr=0.1, **ADAM),
    "adamw": hr.AdamW(lr=0.1, **ADAM),
    "amsgrad": hr.AmsGrad(lr=0.1, **ADAM),
    "rms_prop": hr.RmsProp(lr=0.1, momentum=0.5),
    "ftrl": hr.Ftrl(lr=0.1, l1=0.05, beta=1.0),
}


class Model(nn.Module):
    """A table of every optimizer, tables with admission, eviction, segments and 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        tables = [hr.Table(name, 3, optimizer=one) for name, one in OPTIMIZERS.items()]
        tables += [
            hr.Table("counted", 3, admit=hr.Count(2)),
            hr.Table("lately", 3, admit=hr.Within(1000, 2)),
            hr.Table("lru", 3, evict=hr.Lru(8)),
            hr.Table("half", 3, dtype="fp16", pooling="mean"),
            hr.Table(
                "cut",
                3,
                segments=[
                    hr.Segment(1, hr.Zeros(), hr.Ftrl()),
                    hr.Segment(2, hr.Uniform(0.1), hr.Sgd(lr=0.1)),
                ],
            ),
        ]
        self.sparse = hr.EmbeddingBags(tables, init=hr.Uniform(0.3), optimizer=hr.Adagrad(), seed=5)
        self.top = nn.Linear(3 * len(tables), 1)

    def forward(self, ids: hr.IdBatch) -> Tensor:
        return self.top(torch.cat(list(self.sparse(ids).values()), dim=1)).squeeze(1)


def batch(names: list[str], step: int) -> hr.IdBatch:
    """Ten samples; sample i of a feature has i % 3 + 1 ids."""
    lists = [[IDS[(i * 3 + j + step) % len(IDS)] for j in range(i % 3 + 1)] for i in range(10)]
    return hr.IdBatch.from_lists(dict.fromkeys(names, lists))


def _rows(tables: dict[str, Any]) -> dict[str, Any]:
    ids = torch.tensor(IDS)
    return {
        name: {
            "contains": table.contains(ids).tolist(),
            "rows": table.lookup(ids).rows_of().tolist(),
        }
        for name, table in tables.items()
    }


def write_model(folder: Path) -> dict[str, Any]:
    torch.manual_seed(3)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    names = [*OPTIMIZERS, "counted", "lately", "lru", "half", "cut"]

    def step(number: int) -> float:
        loss = (model(batch(names, number)) - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for number in range(6):
        step(number)
    hr.save(model, folder / "model", optimizer=optimizer, step=6, metadata={"epoch": 1})
    model.eval()
    predicted = model(batch(names, 0)).tolist()
    hr.serving.export(model, folder / "bundle", example=batch(names, 0), version=3, name="entry")
    model.train()
    return {"predicted": predicted, "names": names, "next_losses": [step(6), step(7)]}


def write_chain(folder: Path) -> dict[str, Any]:
    from hedgerow.routing.router import Router

    config = hr.TableConfig(
        "item", (hr.Segment(2, hr.Uniform(0.3), hr.Adam(lr=0.1, **ADAM)),), seed=9
    )
    table = hr.HostTable(config)
    ids = torch.tensor(IDS)
    table.apply_gradients(ids, torch.ones(len(ids), 2), ts=100)
    router = Router("hash_roundrobin", 3)
    hr.save_tables([table], folder / "chain", router=router, step=1, consumer="saves")
    table.apply_gradients(ids[:4], torch.ones(4, 2), ts=200)
    table.erase(ids[4:6])
    hr.save_increment(folder / "chain", [table], consumer="saves", step=2)
    table.apply_gradients(ids[5:6], torch.ones(1, 2), ts=300)
    table.erase(ids[:1])
    hr.save_increment(folder / "chain", [table], consumer="saves", step=3)
    return _rows({"item": table})["item"]


def write_servers(folder: Path) -> dict[str, Any]:
    """Two servers with logs: one is killed with a log alone, one has a checkpoint and a log."""
    from hedgerow.ps.remote_shard import connect
    from hedgerow.ps.server_tables import ServerTables

    work = folder / "servers"
    command = [sys.executable, "-m", "hedgerow", "ps", "--durability", "log"]
    servers = [
        subprocess.Popen(
            [*command, "--shard", f"{i}/2", "--checkpoint", str(work)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    addresses = [one.stdout.readline().strip() for one in servers if one.stdout]
    config = hr.TableConfig("item", (hr.Segment(2, hr.Uniform(0.3), hr.Adagrad(lr=0.1)),), seed=4)
    shards = connect(addresses, {"item": config})
    store = ServerTables(shards, {"item": config})
    return _use_servers(store, shards, servers, work)


def _use_servers(store: Any, shards: Any, servers: Any, work: Path) -> dict[str, Any]:
    ids = torch.tensor(IDS)
    for number in range(5):
        store.apply_gradients(ids[number:], torch.ones(len(IDS) - number, 2), ts=100 + number)
    rows = store.lookup(ids).rows_of()
    for shard in shards:
        shard.close()
    servers[0].kill()
    servers[1].send_signal(signal.SIGTERM)
    for one in servers:
        one.wait()
    return {"rows": rows.tolist()}


def _run(*words: str, cwd: Path) -> None:
    subprocess.run([sys.executable, "-m", "hedgerow", *words], check=True, cwd=cwd)


def write_commands(folder: Path) -> None:
    """A plan, a calibration, statistics of keys and a run, by the commands that users have."""
    tables = "[tables.user]\nrows = 1_000_000\ndim = 16\noptimizer = 'adam'\n"
    tables += "[tables.item]\nrows = 50_000_000\ndim = 64\noptimizer = 'adagrad'\n"
    (folder / "tables.toml").write_text(tables)
    _run("calibrate", "--seconds", "3", "--out", "calibration.json", cwd=folder)
    size = ("--ranks", "4", "--local-ranks", "2", "--hbm", "2GiB", "--host", "64GiB")
    _run("plan", "tables.toml", *size, "--out", "plan.json", cwd=folder)
    job = "[data]\nsource = 'clicks'\n[model]\nname = 'deepfm'\ndim = 4\nhidden = [8]\n"
    job += "[train]\nsteps = 6\nlog_every = 2\n"
    (folder / "job.toml").write_text(job)
    _run("train", "job.toml", "--out", "run", cwd=folder)
    shutil.rmtree(folder / "run" / "tensorboard")
    (folder / "run" / "curves.png").unlink()


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    expected = {
        "model": write_model(folder),
        "chain": write_chain(folder),
        "servers": write_servers(folder),
    }
    write_commands(folder)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
