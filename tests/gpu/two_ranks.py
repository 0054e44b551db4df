"""What each of two processes on one GPU does: trains its half, and writes the rows it owns."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import hedgerow as hr
from hedgerow.launch.process_group import end_process_group
from hedgerow.nn.follow_plan import job_device

from .training_work import batches, model, rows, step


def main(folder: Path) -> None:
    device = job_device()
    made = hr.distribute(model().to(device))
    rank = torch.distributed.get_rank()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.05)
    for batch in batches():
        half = batch.samples // 2
        share = batch.part(rank * half, rank * half + half).to(device)
        step(made, optimizer, share)
    (folder / f"{rank}.json").write_text(json.dumps(rows(made)))
    end_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
