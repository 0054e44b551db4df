"""Two processes that train one model, and DLRM over them with torch's own exchanges."""

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
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .subject import serve
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
        above = 2 if self.program[0].startswith("benchmarks.") else 1
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


class TorchExchange(Pair):
    """Row r of all tables together is on rank r modulo 2, in one weight with sparse gradients."""

    program: ClassVar[tuple[str, str]] = ("peers.two_ranks", "TorchExchange")

    def make_rows(self) -> None:
        """The weight of this rank, and torch's optimizer for it."""
        torch.sparse.check_sparse_tensor_invariants.disable()  # the default, said aloud: no warning
        rows = torch.empty(self.work.rows // RANKS, self.work.dim)
        for start in range(0, len(rows), self.work.call_ids):
            stop = min(start + self.work.call_ids, len(rows))
            numbers = np.arange(start, stop) * RANKS + self.rank
            rows[start:stop] = torch.from_numpy(self.work.first_rows_of(numbers))
        self._weight = nn.Parameter(rows)
        self.optimizers.append(self.adagrad([self._weight]))
        self._dense = DistributedDataParallel(self.over)

    def ids_of(self, batch: NDArray[np.int64]) -> Tensor:
        """Row numbers over all tables, sample after sample: the dense part takes rows so."""
        return torch.from_numpy(np.ascontiguousarray(batch.T)).view(-1)

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """One exchange for all tables."""
        return self._dense(dense, self.vectors(ids).view(self.samples, -1))

    def vectors(self, ids: Tensor) -> Tensor:
        """The row of every id."""
        rows: Any = _Rows.apply(self._weight, ids)
        return rows

    def own_row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """Straight from the weight."""
        of_all = torch.from_numpy(numbers) + table * self.table_rows
        mine = (of_all % RANKS == self.rank).unsqueeze(1)
        return self._weight.detach()[of_all // RANKS] * mine


class _Rows(torch.autograd.Function):
    """Ids to their owners, rows back; gradients the other way."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> Tensor:
        """Counts, then ids, then rows travel."""
        owner = ids % RANKS
        order = torch.argsort(owner, stable=True)
        leaving = torch.bincount(owner, minlength=RANKS)
        coming = torch.empty_like(leaving)
        dist.all_to_all_single(coming, leaving)
        sent, received = leaving.tolist(), coming.tolist()
        asked = ids.new_empty(sum(received))
        dist.all_to_all_single(asked, ids[order], received, sent)
        asked //= RANKS
        rows = weight.new_empty(len(ids), weight.shape[1])
        dist.all_to_all_single(rows, weight[asked], sent, received)
        ctx.save_for_backward(asked, order)
        ctx.sizes, ctx.shape = (sent, received), weight.shape
        return torch.empty_like(rows).index_copy_(0, order, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Averaged over ranks, as the dense part's are."""
        asked, order = ctx.saved_tensors
        sent, received = ctx.sizes
        arrived = grads[0].new_empty(len(asked), ctx.shape[1])
        dist.all_to_all_single(arrived, grads[0][order], received, sent)
        return torch.sparse_coo_tensor(asked.unsqueeze(0), arrived / RANKS, ctx.shape), None


class TorchExchangeUnique(TorchExchange):
    """Rows travel once, and their summed gradients once."""

    program: ClassVar[tuple[str, str]] = ("peers.two_ranks", "TorchExchangeUnique")

    def vectors(self, ids: Tensor) -> Tensor:
        """The row of every id, from those of the distinct ones."""
        distinct, which = ids.unique(return_inverse=True)
        return super().vectors(distinct).index_select(0, which)


if __name__ == "__main__":
    serve(TorchExchange, TorchExchangeUnique)
