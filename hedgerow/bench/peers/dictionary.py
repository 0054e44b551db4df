"""A Python dict from id to row number over a tensor of rows: what one writes without a library."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .serve import serve
from .torch_rows import TorchRows


class Dictionary(TorchRows):
    """Takes real ids. Timed: ids to a list, a dict access each, `torch.index_select`.

    Growing: new ids get the next row numbers and the tensor doubles when it is full.
    """

    def fill(self) -> None:
        """All ids in the order of their rows."""
        self._number = {id_: i for i, id_ in enumerate(self.work.ids().tolist())}
        self.weight = torch.empty(self.work.rows, self.work.dim)
        self.copy_first_rows(self.weight)

    def place(self, access: str) -> None:
        """Real ids in the place of row numbers."""
        super().place(access)
        ids = torch.from_numpy(np.array(self.work.ids()))
        self.batches = [ids[numbers] for numbers in self.batches]

    def lookup(self, batch: int, output: str) -> Tensor:
        """Fresh output only."""
        number = self._number
        numbers = torch.tensor([number[id_] for id_ in self.batches[batch].tolist()])
        return torch.index_select(self.weight, 0, numbers)

    def place_calls(self) -> None:
        """Ids and rows of every call."""
        ids, calls = np.array(self.work.ids()), self.work.calls()
        self._calls = [
            (torch.from_numpy(ids[a:b]), torch.from_numpy(self.work.first_rows(a, b)))
            for a, b in calls
        ]

    def empty(self) -> None:
        """Room for one call."""
        self._number = {}
        self.weight = torch.empty(self.work.call_ids, self.work.dim)

    def insert(self, call: int) -> None:
        """Writes rows at the numbers of their ids."""
        ids, rows = self._calls[call]
        number = self._number
        numbers = torch.tensor([number.setdefault(id_, len(number)) for id_ in ids.tolist()])
        while len(number) > len(self.weight):
            self.weight = torch.cat([self.weight, torch.empty_like(self.weight)])
        self.weight[numbers] = rows

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Through the dict."""
        ids = self.work.ids()[np.array(numbers)].tolist()
        return self.weight[[self._number[id_] for id_ in ids]].numpy()


if __name__ == "__main__":
    serve(Dictionary)
