"""`hedgerow train` inside a rank of a pool, and what a run has left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.data.source import Batch
from hedgerow.nn.model_tables import tables_of
from hedgerow.train.events import read_events
from hedgerow.train.run_folder import load_run
from hedgerow.train.run_ranks import RunRanks

JOB = """\
[data]
source = "parquet"
files = "train.parquet"
test_files = "test.parquet"
features = ["user", "item", "seen"]
dense = ["hour"]
label = "click"
weight = "weight"
batch_size = 32  # 330 rows: the last batch of an epoch has 10, which 3 ranks cannot share equally

[model]
dim = 4
hidden = [8]

[model.tables.item]
features = ["item", "seen"]
dist_type = "roundrobin"

[train]
epochs = 2
log_every = 5

[checkpoint]
every_steps = 7
"""
STEPS = 22


def write_job(folder: Path) -> Path:
    for name, rows, seed in (("train", 330, 1), ("test", 101, 2)):
        random = np.random.default_rng(seed)
        users, items = random.integers(0, 40, rows), random.integers(0, 30, rows)
        columns = {
            "user": [f"u{user}" for user in users],
            "item": items,
            "seen": [list(random.integers(0, 30, random.integers(0, 3))) for _ in range(rows)],
            "hour": random.random(rows),
            "click": ((users + items) % 2).astype(np.float32),
            "weight": random.integers(1, 5, rows) / 2,
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    (folder / "job.toml").write_text(JOB)
    return folder / "job.toml"


def hedgerow(*arguments: object, status: int = 0) -> str:
    """What the program says on stdout in this process."""
    result = CliRunner().invoke(program.app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.stdout


def in_folder(folder: Path, *arguments: object) -> str:
    """The same in a folder that becomes the current one."""
    os.chdir(folder)
    return hedgerow(*arguments)


def one_rank_interrupted(rank: int, step: int, *arguments: object) -> str:
    """Ctrl-C reaches a single rank, at its `step`-th step; every rank ends as interrupted."""
    share, seen = RunRanks.share, []

    def interrupted(self: RunRanks, batch: Batch) -> Batch:
        seen.append(1)
        if len(seen) == step and dist.get_rank() == rank:
            signal.raise_signal(signal.SIGINT)
        return share(self, batch)

    with mock.patch.object(RunRanks, "share", interrupted):
        return hedgerow(*arguments, status=1)


def events(run: Path) -> list[dict[str, Any]]:
    return read_events(run / "log.jsonl")


def rows(run: Path) -> dict[str, dict[int, Any]]:
    """All rows of the newest checkpoint by table and id."""
    found: dict[str, dict[int, Any]] = {}
    for name, table in tables_of(load_run(run).model).items():
        parts = list(table.scan())
        ids = torch.cat([part.ids for part in parts]).tolist()
        found[name] = dict(zip(ids, torch.cat([part.rows for part in parts]), strict=True))
    return found
