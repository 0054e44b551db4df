"""Tables of torch alone: its embeddings, its gather, and a dict over a tensor."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .subject import Subject, serve
from .workfile import Work


class TorchRows(Subject):
    """A table of rows by number; a subclass makes `weight` in `fill`."""

    packages: ClassVar[tuple[str, ...]] = ("torch",)
    weight: Tensor

    def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
        super().__init__(work, threads, optimizer)
        torch.set_num_threads(threads)
        self.batches: list[Tensor] = []
        self.gradients = torch.empty(0)

    def copy_first_rows(self, weight: Tensor) -> None:
        """Sets the rows of `weight` to their first values."""
        with torch.no_grad():
            for start, stop in self.work.calls():
                weight[start:stop] = torch.from_numpy(self.work.first_rows(start, stop))

    def place(self, access: str) -> None:
        """Row numbers as int64 tensors."""
        self.batches = [torch.from_numpy(np.array(b)) for b in self.work.batches(access)]
        if self.optimizer:
            self.gradients = torch.from_numpy(self.work.gradients())

    def array(self, rows: Tensor) -> NDArray[np.float32]:
        """Without a copy."""
        return rows.detach().numpy()

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Straight from the weight."""
        return self.weight.detach()[torch.from_numpy(np.array(numbers))].numpy()


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
    serve(Embedding, SparseEmbedding, IndexSelect, Dictionary)
