"""`hedgerow bench a2a`: whole training steps over two processes, against others' exchanges."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hedgerow import native
from hedgerow.core.errors import LaunchError
from hedgerow.core.id_batch import IdBatch
from hedgerow.launch.process_group import group_settings, process_group
from hedgerow.launch.torchrun import command
from hedgerow.nn.distribute import distribute
from hedgerow.nn.embedding_modules import EmbeddingBags
from hedgerow.nn.model_tables import routers_of
from hedgerow.nn.prefetch import prefetch
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.sharding.exchange import Exchange, Finish
from hedgerow.tables.config import Table
from hedgerow.tables.optimizers import Sgd

from . import CHECKOUT
from .peers.two_ranks import RANKS, Pair
from .peers.workfile import Work
from .rounds import Progress, Settings
from .train import TrainSizes, plain_model, train_stage, training_report


class OurPair(Pair):
    """Takes the real 64-bit ids; rows are on the rank that the hash of their id says."""

    program: ClassVar[tuple[str, str]] = ("benchmarks.a2a", "OurPair")
    packages: ClassVar[tuple[str, ...]] = ("hedgerow", "torch", "numpy")

    def __init__(
        self, work: Work, threads: int, optimizer: str | None, *, rank: int = 0, port: int = 0
    ) -> None:
        super().__init__(work, threads, optimizer, rank=rank, port=port)
        native.set_threads(self.threads)
        self._names = tuple(f"f{table}" for table in range(self.features))
        self._offsets = torch.arange(self.features * self.samples + 1)

    def make_model(self) -> None:
        """A model without rows, over both ranks."""
        self._plain = plain_model(self.work, self._names, self.columns)
        self.over = self._plain.over
        self._model = distribute(self._plain)

    def make_rows(self) -> None:
        """Every id of this rank gets its row."""
        ids, routers = self.work.ids(), routers_of(self._plain, RANKS)
        for table, name in enumerate(self._names):
            rows = self._plain.bags.table(name)
            for start, stop in self.calls(table):
                some = torch.from_numpy(np.array(ids[start:stop]))
                mine = routers[name].owners(some) == self.rank
                rows.assign(some[mine], torch.from_numpy(self.work.first_rows(start, stop))[mine])

    def ids_of(self, batch: NDArray[np.int64]) -> Tensor:
        """Real ids, feature after feature."""
        return torch.from_numpy(self.work.ids()[np.array(batch)]).view(-1)

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """The model's call."""
        return self._model(dense, IdBatch(self._names, ids, self._offsets))

    def own_row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """A plain read of the own shard: rows of the other rank are zeros."""
        ids = torch.from_numpy(self.work.ids()[table * self.table_rows + numbers])
        return self._plain.bags.table(self._names[table]).lookup(ids).rows_of()


_DELAY_S = 0.020
_STEPS, _WARM = 40, 5
_TIMEOUT_S = 300


def measure_overlap(nproc: int) -> dict[str, Any]:
    """The median step without and with the next batch on its way, on rank 0 of new processes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "overlap.json")
        done = subprocess.run(
            command(nproc, ["benchmarks.a2a", str(out)], module=True),
            cwd=CHECKOUT,
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


PEERS = ("EBC row-wise", "torch all-to-all", "torch all-to-all, unique")
FULL = TrainSizes(features=26, rows=200_000, dim=32, samples=8_192, batches=12)
QUICK = TrainSizes(features=26, rows=5_000, dim=32, samples=256, batches=4)


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measures us against every peer that was chosen, and what reading ahead hides."""
    sizes = QUICK if settings.quick else FULL
    stage = train_stage(f"DLRM {sizes.features} features, {RANKS} processes", sizes, PEERS)
    report = training_report("a2a", settings, progress, stage, sizes, OurPair)
    report["work"]["processes"] = RANKS
    progress("overlap", 0, 1)
    report["results"].append(measure_overlap(RANKS))
    return report


if __name__ == "__main__":
    main(Path(sys.argv[1]))
