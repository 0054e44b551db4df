"""A whole training step as a subject: forward, loss, backward and both optimizers, timed as one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from .subject import Subject, serve
from .workfile import Work


class PeerInteraction(nn.Module):
    """A bottom of one hidden layer, products of all pairs of vectors, and one linear layer."""

    pairs: Tensor
    columns: Tensor

    def __init__(self, features: int, dense: int, dim: int, hidden: int) -> None:
        super().__init__()
        vectors = features + 1
        self.bottom = nn.Sequential(
            nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU()
        )
        self.top = nn.Linear(dim + vectors * (vectors - 1) // 2, 1)
        i, j = torch.triu_indices(vectors, vectors, offset=1)
        columns = torch.full((vectors, vectors), len(i))
        columns[i, j] = columns[j, i] = torch.arange(len(i))
        self.register_buffer("pairs", i * vectors + j, persistent=False)
        self.register_buffer("columns", columns.flatten(), persistent=False)

    def forward(self, dense: Tensor, vectors: list[Tensor] | Tensor) -> Tensor:
        """One logit a sample; vectors are one tensor a feature, or all as [samples, all floats]."""
        x = self.bottom(dense)
        if isinstance(vectors, Tensor):
            of_features = vectors.view(len(x), -1, x.shape[1])
            v = torch.cat([x.unsqueeze(1), of_features], dim=1)
        else:
            v = torch.stack([x, *vectors], dim=1)
        products: Any = _Products.apply(v, self.pairs, self.columns)
        return self.top(torch.cat([x, products], dim=1)).squeeze(1)


class _Products(torch.autograd.Function):
    """Products of pairs with one product of matrices in backward, as `hr.models` has it."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, pairs: Tensor, columns: Tensor) -> Tensor:
        """Products of the pairs."""
        ctx.save_for_backward(v, columns)
        return (v @ v.mT).flatten(1).index_select(1, pairs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the vectors; each pair stands twice in `every`."""
        v, columns = ctx.saved_tensors
        every = nn.functional.pad(grads[0], (0, 1)).index_select(1, columns)
        return every.view(len(v), v.shape[1], v.shape[1]) @ v, None, None


def set_weights(module: nn.Module, flat: NDArray[np.float32]) -> None:
    """Gives all parameters of a module their values, in the order of `parameters()`."""
    vector_to_parameters(torch.from_numpy(np.array(flat)), module.parameters())


def weights_of(module: nn.Module) -> NDArray[np.float32]:
    """The same values back.

    >>> module = nn.Linear(1, 1)
    >>> set_weights(module, np.array([2.0, 3.0], np.float32))
    >>> weights_of(module).tolist()
    [2.0, 3.0]
    """
    return parameters_to_vector(module.parameters()).detach().numpy()


HIDDEN = 64  # of the bottom


class Training(Subject):
    """DLRM on clicks. Rows are numbered table after table: row r of table t is t * table_rows + r.

    Timed is everything from ids, numbers and labels as tensors to rows and weights after a step.
    """

    packages: ClassVar[tuple[str, ...]] = ("torch",)
    over: nn.Module  # the dense part

    def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
        super().__init__(work, threads, optimizer)
        torch.set_num_threads(threads)
        self.samples, self.columns = work.array("dense").shape[1:]
        self.features = work.batches("clicks").shape[1] // self.samples
        self.table_rows = work.rows // self.features
        self._inputs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._losses: list[Tensor] = []

    def fill(self) -> None:
        """The model and its optimizers."""
        self.make_model()
        set_weights(self.over, self.work.array("weights"))
        self.optimizers = [self.adagrad(list(self.over.parameters()))]
        self.make_rows()
        self._losses = []

    def make_model(self) -> None:
        """The dense part."""
        self.over = PeerInteraction(self.features, self.columns, self.work.dim, HIDDEN)

    def make_rows(self) -> None:
        """All rows with their first values, and what steps them, if it is an optimizer."""
        raise NotImplementedError

    def ids_of(self, batch: NDArray[np.int64]) -> Tensor:
        """A batch of row numbers as this subject takes them; not timed."""
        raise NotImplementedError

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """The forward."""
        raise NotImplementedError

    def row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """Rows of a table as they are now."""
        raise NotImplementedError

    def adagrad(self, parameters: list[Any]) -> torch.optim.Optimizer:
        """Torch's own, as the work says."""
        return torch.optim.Adagrad(
            parameters,
            lr=self.work.rate,
            initial_accumulator_value=self.work.accumulator,
            eps=self.work.eps,
        )

    def copy_first_rows(self, table: int, weight: Tensor) -> None:
        """Sets all rows of a table to their first values."""
        with torch.no_grad():
            for start, stop in self.calls(table):
                first = start - table * self.table_rows
                rows = torch.from_numpy(self.work.first_rows(start, stop))
                weight[first : first + stop - start] = rows

    def calls(self, table: int) -> list[tuple[int, int]]:
        """Slices of the row numbers of a table."""
        end = (table + 1) * self.table_rows
        starts = range(end - self.table_rows, end, self.work.call_ids)
        return [(start, min(start + self.work.call_ids, end)) for start in starts]

    def in_tables(self, batch: NDArray[np.int64]) -> Tensor:
        """Row numbers within each table, [features, samples]: for who takes no 64-bit ids."""
        numbers = np.array(batch).reshape(self.features, self.samples)
        return torch.from_numpy(numbers - self.table_rows * np.arange(self.features)[:, None])

    def place(self, access: str) -> None:
        """Numbers, ids and labels of every batch as tensors."""
        dense, labels = self.work.array("dense"), self.work.array("labels")
        self._inputs = [
            (torch.from_numpy(np.array(x)), self.ids_of(batch), torch.from_numpy(np.array(y)))
            for x, batch, y in zip(dense, self.work.batches(access), labels, strict=True)
        ]

    def train(self, batch: int, output: str) -> Tensor:
        """One step."""
        dense, ids, labels = self._inputs[batch]
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(self.logits(dense, ids), labels)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self._losses.append(loss.detach())
        return loss

    @property
    def steps(self) -> int:
        """Steps taken since `fill`."""
        return len(self._losses)

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """The losses of all steps, the dense weights, then these rows, flat."""
        tables = numbers // self.table_rows
        parts = [torch.stack(self._losses).numpy(), weights_of(self.over)]
        for table in range(self.features):
            mine = numbers[tables == table] - table * self.table_rows
            parts.append(self.row_values(table, mine).numpy().reshape(-1))
        return np.concatenate(parts)


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
