"""`hedgerow bench train`: samples per second of a whole training step, against the same model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hedgerow import native
from hedgerow.core.id_batch import IdBatch
from hedgerow.data.synthetic_clicks import wide_clicks
from hedgerow.models.dlrm import DLRM
from hedgerow.tables.config import Table
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Adagrad

from .cases import Case, Stage, choose
from .peers.subject import Subject
from .peers.training import HIDDEN, PeerInteraction, Training, weights_of
from .peers.workfile import Work
from .rounds import Counter, Progress, Settings, machine
from .stages import run_stages
from .work import WorkPlan, accesses, pattern, random_ids, write_work

_SEED = 20_261_115


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSizes:
    """How large the job is; one table a feature, one id a sample and feature."""

    features: int
    rows: int  # of a table
    dim: int
    samples: int  # of a batch
    batches: int

    def plan(self) -> WorkPlan:
        """All rows of all tables as those of one work, numbered table after table."""
        return WorkPlan(
            name="clicks",
            rows=self.features * self.rows,
            dim=self.dim,
            accesses=("clicks",),
            batch_ids=self.features * self.samples,
            batches=self.batches,
        )


FULL = TrainSizes(features=26, rows=1_000_000, dim=32, samples=4_096, batches=24)
QUICK = TrainSizes(features=26, rows=20_000, dim=32, samples=256, batches=5)


def make_train_work(sizes: TrainSizes, folder: Path) -> Work:
    """Writes batches, the ids of all rows, and first weights into a new folder.

    Row numbers are dealt at random: rows of frequent ids lie anywhere, as in a vocabulary that was
    built in any order. Ids of rows that no batch asks for are random.

    >>> import tempfile
    >>> sizes = TrainSizes(features=2, rows=3_000, dim=4, samples=64, batches=2)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     work = make_train_work(sizes, Path(parent) / "w")
    ...     work.ids().shape, work.batches("clicks").shape, work.array("dense").shape
    ((6000,), (2, 128), (2, 64, 4))
    """
    random = np.random.default_rng(_SEED)
    source = wide_clicks(sizes.samples, sizes.batches, features=sizes.features, rows=sizes.rows)
    made = [source.batch(step) for step in range(sizes.batches)]
    asked = np.stack([batch.ids.values.numpy() for batch in made])
    asked = asked.reshape(sizes.batches, sizes.features, sizes.samples)
    ids, numbers = _rows_of(sizes, asked, random)
    dense = np.stack([batch.dense.numpy() for batch in made])
    torch.manual_seed(_SEED)
    over = PeerInteraction(sizes.features, dense.shape[2], sizes.dim, HIDDEN)
    arrays: dict[str, NDArray[Any]] = {
        "ids": ids,
        "pattern": pattern(sizes.dim, random),
        "dense": dense,
        "labels": np.stack([batch.labels.numpy() for batch in made]),
        "weights": weights_of(over),
        **accesses(sizes.plan(), "clicks", numbers, random),
    }
    return write_work(sizes.plan(), folder, arrays)


def _rows_of(
    sizes: TrainSizes, asked: NDArray[np.int64], random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The id of every row, and the row number of every id that a batch asks for."""
    others = random_ids(2 * sizes.rows)
    ids = np.empty(sizes.features * sizes.rows, np.int64)
    numbers = np.empty_like(asked)
    for table in range(sizes.features):
        first = table * sizes.rows
        known, place = np.unique(asked[:, table], return_inverse=True)
        spare = np.setdiff1d(others, known, assume_unique=True)[: sizes.rows - len(known)]
        dealt = random.permutation(sizes.rows)
        ids[first + dealt] = np.concatenate([known, spare])
        numbers[:, table] = first + dealt[place].reshape(asked[:, table].shape)
    return ids, numbers


def plain_model(work: Work, names: Sequence[str], columns: int) -> DLRM:
    """The model as a user builds it, without rows; its optimizer is what the work says."""
    adagrad = Adagrad(lr=work.rate, initial_accumulator_value=work.accumulator, eps=work.eps)
    return DLRM(
        [Table(name, work.dim) for name in names],
        dense=columns,
        bottom=(HIDDEN,),
        top=(),
        init=Zeros(),
        optimizer=adagrad,
    )


class OurTraining(Training):
    """Takes the real 64-bit ids; the batch of ids is made in the step, as TorchRec's is."""

    packages: ClassVar[tuple[str, ...]] = ("hedgerow", "torch", "numpy")

    def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
        super().__init__(work, threads, optimizer)
        native.set_threads(threads)
        self._names = tuple(f"f{table}" for table in range(self.features))
        self._offsets = torch.arange(self.features * self.samples + 1)

    def make_model(self) -> None:
        """A model without rows."""
        self.model = plain_model(self.work, self._names, self.columns)
        self.over = self.model.over

    def make_rows(self) -> None:
        """Every id gets its row."""
        ids = self.work.ids()
        for table, name in enumerate(self._names):
            rows = self.model.bags.table(name)
            for start, stop in self.calls(table):
                first = torch.from_numpy(self.work.first_rows(start, stop))
                rows.assign(torch.from_numpy(np.array(ids[start:stop])), first)

    def reset(self) -> None:
        """The same model from the start."""
        if self.steps:
            for name in self.model.bags.store.names:
                self.model.bags.table(name).clear()  # before the next takes as much memory
            self.fill()

    def ids_of(self, batch: NDArray[np.int64]) -> Tensor:
        """Real ids."""
        return torch.from_numpy(self.work.ids()[np.array(batch)])

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """The model's call."""
        return self.model(dense, IdBatch(self._names, ids, self._offsets))

    def row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """A plain read."""
        ids = torch.from_numpy(self.work.ids()[table * self.table_rows + numbers])
        return self.model.bags.table(self._names[table]).lookup(ids).rows_of()


PEERS = ("nn.EmbeddingBag(sparse)", "EBC sparse", "EBC fused")


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measures us against every peer that was chosen; one report, in the form of all."""
    sizes = QUICK if settings.quick else FULL
    stage = train_stage(f"DLRM {sizes.features} features", sizes, PEERS)
    return training_report("train", settings, progress, stage, sizes, OurTraining)


def training_report(
    bench: str,
    settings: Settings,
    progress: Progress,
    stage: Stage,
    sizes: TrainSizes,
    ours: type[Subject],
) -> dict[str, Any]:
    """One stage of whole training steps, with its sizes and speeds."""
    stages, _ = choose([stage], settings.cases, settings.peers)
    counter = Counter(progress, stages, settings.rounds)
    versions, results = run_stages(
        settings, stages, counter, make=lambda plan, to: make_train_work(sizes, to), ours=ours
    )
    return {
        "bench": bench,
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": settings.quick,
            "features": sizes.features,
            "rows_a_table": sizes.rows,
            "dim": sizes.dim,
            "samples": sizes.samples,
            "batches": sizes.batches,
        },
        "versions": versions,
        "results": [with_speed(result, sizes.samples) for result in results],
    }


def train_stage(name: str, sizes: TrainSizes, peers: tuple[str, ...]) -> Stage:
    """The one case."""
    case = Case(name=name, operation="train", access="clicks", output="fresh", peers=peers)
    return Stage(plan=sizes.plan(), optimizer="adagrad", cases=(case,))


def with_speed(result: dict[str, Any], samples: int) -> dict[str, Any]:
    """Adds samples a second to a result that has times.

    >>> with_speed({"ours_ms": 20.0, "peer_ms": 40.0}, 4_000)["ours_samples_per_s"]
    200000
    """
    if "ours_ms" in result:
        for who in ("ours", "peer"):
            result[f"{who}_samples_per_s"] = round(1e3 * samples / result[f"{who}_ms"])
    return result
