"""Makes the work of the training benchmark: batches of synthetic clicks, ids, dense weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.synthetic_clicks import wide_clicks
from .peers.interaction import PeerInteraction, weights_of
from .peers.training import HIDDEN
from .peers.workfile import Work
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
