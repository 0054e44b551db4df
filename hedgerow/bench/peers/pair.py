"""Two processes that train one model: the first does as it is asked, the second does the same."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from .training import Training
from .workfile import Work

RANKS = 2
_PATIENCE = timedelta(seconds=300)
_START = (
    "import importlib, sys; sys.path.append(sys.argv[1]); "
    "getattr(importlib.import_module(sys.argv[2]), sys.argv[3]).second(sys.argv[4:])"
)


class Pair(Training):
    """A model over two ranks of a gloo group, each with its half of every batch and of the threads.

    This process is rank 0. It starts rank 1, which ends when this one does, and tells it every
    call. A subclass keeps the rows of its rank alone.
    """

    program: ClassVar[tuple[str, str]]  # module and class, as the second process finds them

    def __init__(
        self, work: Work, threads: int, optimizer: str | None, *, rank: int = 0, port: int = 0
    ) -> None:
        super().__init__(work, max(1, threads // RANKS), optimizer)
        self.samples //= RANKS
        self.rank, self._second = rank, None
        store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            "127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=_PATIENCE
        )
        if rank == 0:
            self._second = self._start(store.port, threads)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=_PATIENCE)

    def _start(self, port: int, threads: int) -> subprocess.Popen[str]:
        above = 3 if self.program[0].startswith("hedgerow.") else 1
        where = [Path(__file__).parents[above], *self.program]
        what = [port, self.work.folder, threads, self.optimizer or ""]
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _START, *map(str, where), *map(str, what)],
            stdin=subprocess.PIPE,
            text=True,
        )

    @classmethod
    def second(cls, arguments: list[str]) -> None:
        """The life of rank 1: whatever rank 0 says, until it is gone."""
        port, folder, threads, optimizer = arguments
        subject = cls(
            Work.read(Path(folder)), int(threads), optimizer or None, rank=1, port=int(port)
        )
        for line in sys.stdin:
            call, *values = json.loads(line)
            getattr(subject, call)(*values)

    def leave(self) -> None:
        """Ends rank 1 and the group."""
        if self._second is not None and self._second.stdin is not None:
            self._second.stdin.close()
            self._second.wait()
        dist.destroy_process_group()

    def _tell(self, call: str, *values: Any) -> None:
        if self._second is not None and self._second.stdin is not None:
            self._second.stdin.write(json.dumps([call, *values]) + "\n")
            self._second.stdin.flush()

    def fill(self) -> None:
        """The model, on both."""
        self._tell("fill")
        super().fill()

    def reset(self) -> None:
        """The same model from the start, on both."""
        self._tell("reset")
        if self.steps:
            super().fill()

    def place(self, access: str) -> None:
        """Each its half of the samples."""
        self._tell("place", access)
        mine = slice(self.rank * self.samples, (self.rank + 1) * self.samples)
        dense, labels = self.work.array("dense"), self.work.array("labels")
        batches = self.work.batches(access)
        batches = batches.reshape(len(batches), self.features, -1)[:, :, mine]
        self._inputs = [
            (_tensor(x[mine]), self.ids_of(batch), _tensor(y[mine]))
            for x, batch, y in zip(dense, batches, labels, strict=True)
        ]

    def train(self, batch: int, output: str) -> Tensor:
        """One step of both."""
        self._tell("train", batch, output)
        return super().train(batch, output)

    def rows(self, numbers: NDArray[np.int64] | list[int]) -> NDArray[np.float32]:
        """The losses of rank 0, the dense weights, then these rows of whoever has them."""
        numbers = np.asarray(numbers)
        self._tell("rows", numbers.tolist())
        return super().rows(numbers)

    def row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """From both ranks."""
        values = self.own_row_values(table, numbers).contiguous()
        dist.all_reduce(values)
        return values

    def own_row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """Rows that this rank has; zeros in the place of others."""
        raise NotImplementedError


def _tensor(values: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.array(values))
