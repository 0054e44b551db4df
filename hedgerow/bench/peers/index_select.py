"""`torch.index_select` into a given output: torch's own gather, by row number."""

from __future__ import annotations

import torch
from torch import Tensor

from .serve import serve
from .torch_rows import TorchRows


class IndexSelect(TorchRows):
    """A plain tensor of rows. Timed: `torch.index_select(rows, 0, numbers, out=out)`."""

    def fill(self) -> None:
        """Allocates the rows and their output."""
        self.weight = torch.empty(self.work.rows, self.work.dim)
        self.copy_first_rows(self.weight)

    def place(self, access: str) -> None:
        """With an output that every call reuses."""
        super().place(access)
        self._out = torch.zeros(len(self.batches[0]), self.work.dim)

    def lookup(self, batch: int, output: str) -> Tensor:
        """Reused output only."""
        return torch.index_select(self.weight, 0, self.batches[batch], out=self._out)


if __name__ == "__main__":
    serve(IndexSelect)
