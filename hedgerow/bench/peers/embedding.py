"""`torch.nn.Embedding`: a dense table, by row number, without hashing."""

from __future__ import annotations

import torch
from torch import Tensor

from .serve import serve
from .torch_rows import TorchRows


class Embedding(TorchRows):
    """Timed: the module's call without autograd; its output is fresh."""

    def fill(self) -> None:
        """The module, with our rows as its weight."""
        rows = torch.empty(self.work.rows, self.work.dim)
        self.copy_first_rows(rows)
        self._module = torch.nn.Embedding.from_pretrained(rows)
        self.weight = self._module.weight

    def lookup(self, batch: int, output: str) -> Tensor:
        """Fresh output only."""
        with torch.no_grad():
            return self._module(self.batches[batch])


if __name__ == "__main__":
    serve(Embedding)
