"""A job to be killed: `python -m tests.train.resume_job FOLDER`; goes on where it was stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.core.shapes import Float32
from hedgerow.nn.model_tables import tables_of
from hedgerow.train.checkpoints import Checkpoints
from hedgerow.train.events import JsonLines
from hedgerow.train.loop import LoopSchedule, Trainer


class Model(nn.Module):
    """All that a run must bring back: rows of several rules, admission, a generator, a schedule."""

    def __init__(self) -> None:
        super().__init__()
        rate = hr.Polynomial(0.1, decay_steps=100, end=0.01)
        self.wide = hr.models.DeepFM(
            [
                hr.Table("user", 4, admit=hr.Count(2)),
                hr.Table("item", 4, features=["item", "history"], optimizer=hr.Adam(lr=rate)),
            ],
            dense=1,
            hidden=(8,),
            optimizer=hr.Adagrad(lr=0.1),
            seed=5,
        )
        self.drop = nn.Dropout(0.3)

    def forward(self, dense: Float32[Tensor, "n 1"], ids: hr.IdBatch) -> Float32[Tensor, "n"]:
        return self.wide(self.drop(dense), ids)


def write_data(folder: Path) -> None:
    """Two Parquet files of synthetic clicks, so that positions lie inside files."""
    for number in range(2):
        parts = [hr.data.clicks(batch_size=500, steps=2).batch(number)]
        (dense, ids, labels) = parts[0]
        columns: dict[str, Any] = {
            name: pa.array(ids.feature(name).to_lists()) for name in ("user", "item", "history")
        }
        columns |= {"number": dense[:, 0].numpy(), "label": labels.numpy()}
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet", row_group_size=200)


def source(folder: Path, batch_size: int, window_rows: int) -> Any:
    """The files, shuffled with a window."""
    return hr.data.parquet(
        sorted(folder.glob("part-*.parquet")),
        batch_size,
        features=["user", "item", "history"],
        label="label",
        dense=["number"],
        window_rows=window_rows,
        seed=3,
    )


def trainer(data: Path, run: Path) -> Trainer:
    """The job, at its newest checkpoint."""
    torch.manual_seed(1)
    model = Model()
    made = Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        source(data, 32, 300),
        test=source(data, 256, 0),
        schedule=LoopSchedule(epochs=3, log_every=5, eval_every=20, early_stop=50),
        checkpoints=Checkpoints(run / "checkpoints", every_steps=7),
    )
    kept = made.progress.events if made.resume() else None
    made.sinks.append(JsonLines(run / "log.jsonl", kept=kept))
    return made


def state(made: Trainer) -> dict[str, Any]:
    """Everything that has to be the same, as tensors by name."""
    found: dict[str, Any] = dict(made.model.named_parameters())  # rows have times, see below
    found |= dict(made.model.named_buffers())
    for number, of_weight in made.optimizer.state_dict()["state"].items():
        found |= {f"optimizer {number} {name}": value for name, value in of_weight.items()}
    for name, table in tables_of(made.model).items():
        entries = table.entries(torch.cat([part.ids for part in table.scan()]).sort().values)
        found |= {f"{name} ids": entries.ids, f"{name} rows": entries.rows}
        for i, states in enumerate(entries.states):
            found |= {f"{name} state {i} {key}": value for key, value in states.items()}
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    data, run = Path(sys.argv[1]), Path(sys.argv[2])
    job = trainer(data, run)
    outcome = job.run()
    torch.save({"why": outcome.why, "state": state(job)}, run / "end.pt")
