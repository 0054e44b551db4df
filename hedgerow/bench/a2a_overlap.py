"""What `hr.prefetch` hides: rows that travel for 20 ms beside a dense part as long."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.errors import LaunchError
from ..core.id_batch import IdBatch
from ..launch.process_group import group_settings, process_group
from ..launch.torchrun import command
from ..nn.bags import EmbeddingBags
from ..nn.distribute import distribute
from ..nn.prefetch import prefetch
from ..sharding.all_to_all_tables import AllToAllTables
from ..sharding.exchange import Exchange, Finish
from ..tables.optimizers import Sgd
from ..tables.table import Table

_DELAY_S = 0.020
_STEPS, _WARM = 40, 5
_TIMEOUT_S = 300


def measure_overlap(nproc: int) -> dict[str, Any]:
    """The median step without and with the next batch on its way, on rank 0 of new processes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "overlap.json")
        done = subprocess.run(
            command(nproc, ["hedgerow.bench.a2a_overlap", str(out)], module=True),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode or not out.exists():
            told = done.stderr[-2000:]
            raise LaunchError(f"a process failed with status {done.returncode}: {told}")
        return json.loads(out.read_text())


class SlowExchange(Exchange):
    """Rows come later, as over a long way; nobody computes meanwhile."""

    def _transfer(
        self, what: str, values: Tensor, receive: list[int], send: list[int]
    ) -> tuple[Tensor, Finish]:
        arriving, finish = super()._transfer(what, values, receive, send)

        def later() -> None:
            if what == "floats":
                time.sleep(_DELAY_S)
            finish()

        return arriving, later


def step_ms(depth: int) -> float:
    """The median step of one rank."""
    model = EmbeddingBags([Table("user", 16)], optimizer=Sgd(lr=0.5))
    distribute(model)
    store, group = model.store, dist.new_group(backend="gloo")
    assert isinstance(store, AllToAllTables)
    assert isinstance(group, dist.ProcessGroup)
    store.exchange = SlowExchange(group)
    square = torch.rand(512, 512)
    times = []
    for batch in prefetch(model, _batches(), depth=depth):
        start = time.perf_counter()
        loss = model(batch)["user"].sum()
        working = time.perf_counter()
        while time.perf_counter() - working < _DELAY_S:  # the dense part: real products
            square = (square @ square).clamp(0, 1)
        loss.backward()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[_WARM:])


def _batches() -> Iterator[IdBatch]:
    for step in range(_STEPS):
        yield IdBatch.from_lists({"user": [[step + i] for i in range(64)]})


def main(out: Path) -> None:
    """Measures; rank 0 writes."""
    torch.set_num_threads(1)
    with process_group(settings=group_settings("gloo")) as info:
        without, ahead = step_ms(0), step_ms(1)
        if info.rank == 0:
            result = {
                "case": "overlap",
                "delay_ms": 1e3 * _DELAY_S,
                "without_prefetch_ms": round(without, 3),
                "with_prefetch_ms": round(ahead, 3),
                "saved_ms": round(without - ahead, 3),
            }
            out.write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
