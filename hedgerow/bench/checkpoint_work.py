"""What the checkpoint benchmark works on: a table with state, its rows in memory, comparisons."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from ..tables.checkpoint.chain import Chain
from ..tables.checkpoint.files import sync_folder
from ..tables.checkpoint.save import rows_of
from ..tables.config import Segment, TableConfig
from ..tables.host import HostTable
from ..tables.initializers import Zeros
from ..tables.optimizers import Adagrad
from .work import random_ids

DIM = 16
CALL_IDS = 65_536
_SEED = 20_240_105


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much there is to do."""

    rows: int
    batch_ids: int = CALL_IDS
    batches: int = 16  # different ones, looked up in turn
    lookups: int = 200  # of a round at least, each way: a p99 needs them

    def summary(self) -> dict[str, Any]:
        """For the report."""
        return {
            "rows": self.rows,
            "dim": DIM,
            "optimizer": "Adagrad",
            "ids": "random 64-bit",
            "batch_ids": self.batch_ids,
            "lookups": self.lookups,
        }


FULL = Sizes(rows=2_000_000)
QUICK = Sizes(rows=50_000, batch_ids=4_096, lookups=50)


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointWork:
    """A table, the rows it holds, and batches of its ids.

    >>> work = CheckpointWork.make(Sizes(rows=100, batch_ids=8, batches=2))
    >>> work.table.size(), work.assigned().size(), work.wrong_rows(work.table)
    (100, 100, 0)
    """

    table: HostTable
    ids: Int64[Tensor, "n"]
    rows: Float32[Tensor, "n dim"]
    batches: list[Tensor]  # numbers of rows
    sizes: Sizes

    @staticmethod
    def make(sizes: Sizes) -> CheckpointWork:
        """The same rows in every run, each trained for one step, so that states differ."""
        generator = torch.Generator().manual_seed(_SEED)
        ids = torch.from_numpy(random_ids(sizes.rows))
        table = empty_table()
        for part in ids.split(CALL_IDS):
            table.apply_gradients(part, torch.randn(len(part), DIM, generator=generator), ts=7)
        rows = table.lookup(ids).rows_of().clone()
        batches = [
            torch.randint(sizes.rows, (sizes.batch_ids,), generator=generator)
            for _ in range(sizes.batches)
        ]
        return CheckpointWork(table, ids, rows, batches, sizes)

    def assigned(self) -> HostTable:
        """A new table with the rows from memory: the peer of a load."""
        table = empty_table()
        for ids, rows in zip(self.ids.split(CALL_IDS), self.rows.split(CALL_IDS), strict=True):
            table.assign(ids, rows)
        return table

    def wrong_rows(self, other: HostTable) -> int:
        """Rows, states and times of `table` that `other` does not have, and rows it has too many.

        All are compared bit for bit.
        """
        wrong = abs(other.size() - self.table.size())
        for entries in self.table.scan():
            ours, theirs = rows_of(entries), rows_of(other.entries(entries.ids))
            same = torch.ones(len(entries), dtype=torch.bool)
            for name, column in ours.columns.items():
                equal = torch.from_numpy(column == theirs.columns[name])
                same &= equal if equal.ndim == 1 else equal.all(1)
            wrong += int((~same).sum())
        return wrong

    def wrong_rows_in(self, folder: Path) -> int:
        """Rows of the checkpoint in `folder` that the table does not have, and the other way."""
        chain, seen, wrong = Chain.read(folder), 0, 0
        chain.verify()
        for saved in chain.rows(self.table.config.name):
            live = rows_of(self.table.entries(torch.from_numpy(saved.ids)))
            for name, column in saved.columns.items():
                wrong += int((column != live.columns[name]).sum())
            seen += len(saved)
        return wrong + abs(seen - self.table.size())


def empty_table() -> HostTable:
    """A table of the benchmark without rows."""
    rule = Adagrad(lr=0.01, initial_accumulator_value=0.1)
    return HostTable(TableConfig("item", (Segment(DIM, Zeros(), rule),)))


def plain_write(folder: Path, files: Sequence[bytes]) -> None:
    """Writes and flushes new files, and their names: what a save must do at the very least.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plain_write(Path(folder) / "new", [b"ab", b"c"])
    ...     sorted(path.read_bytes() for path in (Path(folder) / "new").iterdir())
    [b'ab', b'c']
    """
    folder.mkdir()
    for number, data in enumerate(files):
        with (folder / f"{number:05d}").open("wb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
    sync_folder(folder)
