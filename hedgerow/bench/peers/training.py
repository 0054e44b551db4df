"""A whole training step as a subject: forward, loss, backward and both optimizers, timed as one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .interaction import PeerInteraction, set_weights, weights_of
from .subject import Subject
from .workfile import Work

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
