"""`torch.nn.Embedding(sparse=True)` with torch's SGD or Adagrad on sparse gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from .serve import serve
from .torch_rows import TorchRows


class SparseEmbedding(TorchRows):
    """Timed: `zero_grad`, forward, backward from the given gradient, `step`."""

    def fill(self) -> None:
        """The module and its optimizer."""
        torch.sparse.check_sparse_tensor_invariants.disable()  # the default, said aloud: no warning
        rows = torch.empty(self.work.rows, self.work.dim)
        self.copy_first_rows(rows)
        self._module = torch.nn.Embedding.from_pretrained(rows, freeze=False, sparse=True)
        self.weight = self._module.weight
        self._optimizer = self._make_optimizer()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD([self.weight], lr=self.work.rate)
        return torch.optim.Adagrad(
            [self.weight],
            lr=self.work.rate,
            initial_accumulator_value=self.work.accumulator,
            eps=self.work.eps,
        )

    def update(self, batch: int, output: str) -> Tensor:
        """Fresh output only."""
        self._optimizer.zero_grad()
        rows = self._module(self.batches[batch])
        rows.backward(self.gradients)
        self._optimizer.step()
        return rows


if __name__ == "__main__":
    serve(SparseEmbedding)
