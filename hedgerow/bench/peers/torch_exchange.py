"""DLRM over two ranks with rows exchanged by torch's own calls, as one writes it by hand."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .pair import RANKS, Pair
from .serve import serve


class TorchExchange(Pair):
    """Row r of all tables together is on rank r modulo 2, in one weight with sparse gradients."""

    program: ClassVar[tuple[str, str]] = ("peers.torch_exchange", "TorchExchange")

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


if __name__ == "__main__":
    serve(TorchExchange)
