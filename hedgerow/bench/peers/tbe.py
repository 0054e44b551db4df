"""FBGEMM's table batched embedding on the CPU: one dense table, optimizer fused into backward."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from .serve import serve
from .torch_rows import TorchRows


class TableBatched(TorchRows):
    """Timed: forward without pooling (offsets 0, 1, 2, ...); for updates also backward from the
    given gradient, which takes the optimizer's step. Its Adagrad has one sum a value, as ours.
    """

    packages: ClassVar[tuple[str, ...]] = ("torch", "fbgemm-gpu-cpu")

    def fill(self) -> None:
        """The module; Adagrad's sums are set, since it has no option for their start."""
        self._module = self._make_module()
        self.weight = self._module.split_embedding_weights()[0]
        self.copy_first_rows(self.weight)
        if self.optimizer == "adagrad":
            self._module.split_optimizer_states()[0][0].fill_(self.work.accumulator)

    def _make_module(self) -> Any:
        from fbgemm_gpu import (  # pyright: ignore[reportMissingImports]
            split_table_batched_embeddings_ops_training as tbe,
        )

        host, cpu = tbe.EmbeddingLocation.HOST, tbe.ComputeDevice.CPU
        adagrad = self.optimizer == "adagrad"
        return tbe.SplitTableBatchedEmbeddingBagsCodegen(
            embedding_specs=[(self.work.rows, self.work.dim, host, cpu)],
            optimizer=tbe.OptimType.EXACT_ADAGRAD if adagrad else tbe.OptimType.EXACT_SGD,
            learning_rate=self.work.rate,
            eps=self.work.eps,
            pooling_mode=tbe.PoolingMode.NONE,
        )

    def place(self, access: str) -> None:
        """One id a bag."""
        super().place(access)
        self._offsets = torch.arange(len(self.batches[0]) + 1)

    def lookup(self, batch: int, output: str) -> Tensor:
        """Fresh output only."""
        with torch.no_grad():
            return self._module(self.batches[batch], self._offsets)

    def update(self, batch: int, output: str) -> Tensor:
        """Fresh output only."""
        rows = self._module(self.batches[batch], self._offsets)
        rows.backward(self.gradients)
        return rows


if __name__ == "__main__":
    serve(TableBatched)
