"""DLRM on one `torch.nn.EmbeddingBag(sparse=True)` a table, with torch's Adagrad for rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .serve import serve
from .training import Training


class SparseBags(Training):
    """Takes row numbers; each bag is one id, and all bags share one tensor of offsets."""

    def make_rows(self) -> None:
        """The modules and their optimizer."""
        torch.sparse.check_sparse_tensor_invariants.disable()  # the default, said aloud: no warning
        self._bags = []
        for table in range(self.features):
            rows = torch.empty(self.table_rows, self.work.dim)
            self.copy_first_rows(table, rows)
            bag = nn.EmbeddingBag.from_pretrained(rows, freeze=False, mode="sum", sparse=True)
            self._bags.append(bag)
        self._offsets = torch.arange(self.samples)
        self.optimizers.append(self.adagrad([bag.weight for bag in self._bags]))

    def ids_of(self, batch: NDArray[np.int64]) -> Tensor:
        """Row numbers of each table."""
        return self.in_tables(batch)

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """One call a table."""
        pairs = zip(self._bags, ids.unbind(), strict=True)
        return self.over(dense, [bag(numbers, self._offsets) for bag, numbers in pairs])

    def row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """Straight from the weight."""
        return self._bags[table].weight.detach()[torch.from_numpy(numbers)]


if __name__ == "__main__":
    serve(SparseBags)
