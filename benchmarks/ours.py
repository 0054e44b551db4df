"""Our side of every comparison: the host table through its public methods."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hedgerow import native
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Adagrad, Sgd

from .peers.subject import Subject, serve
from .peers.workfile import Work


def make_table(work: Work, optimizer: str | None) -> HostTable:
    """An empty table for the work; one that only reads or inserts takes SGD, which has no state."""
    if optimizer == "adagrad":
        rule = Adagrad(lr=work.rate, initial_accumulator_value=work.accumulator, eps=work.eps)
    else:
        rule = Sgd(lr=work.rate)
    return HostTable(TableConfig(work.name, (Segment(work.dim, Zeros(), rule),)))


class Ours(Subject):
    """`HostTable`. Timed: `lookup`, with `out=` where the output is reused; for updates also
    `apply_gradients` at that lookup; for inserts `assign`.
    """

    packages: ClassVar[tuple[str, ...]] = ("hedgerow", "torch", "numpy")

    def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
        super().__init__(work, threads, optimizer)
        native.set_threads(threads)
        self._ids = torch.from_numpy(np.array(work.ids()))
        self._touched: dict[str, Tensor] = {}  # row numbers by access pattern, each once
        self._table = make_table(work, optimizer)

    def fill(self) -> None:
        """Call by call, from an empty table."""
        for start, stop in self.work.calls():
            rows = torch.from_numpy(self.work.first_rows(start, stop))
            self._table.assign(self._ids[start:stop], rows)

    def place(self, access: str) -> None:
        """Ids of each batch, and the output that is reused."""
        numbers = np.array(self.work.batches(access))
        self._batches = [self._ids[torch.from_numpy(b)] for b in numbers]
        self._out = torch.zeros(numbers.shape[1], self.work.dim)
        if self.optimizer:
            self._touched[access] = torch.from_numpy(np.unique(numbers))
            self._gradients = torch.from_numpy(self.work.gradients())

    def lookup(self, batch: int, output: str) -> Any:
        """Rows of a batch."""
        out = self._out if output == "reused" else None
        return self._table.lookup(self._batches[batch], out=out)

    def update(self, batch: int, output: str) -> Any:
        """Rows of a batch, then a step."""
        found = self.lookup(batch, output)
        self._table.apply_gradients(found, self._gradients)
        return found

    def place_calls(self) -> None:
        """Rows of every call."""
        self._calls = [
            (self._ids[a:b], torch.from_numpy(self.work.first_rows(a, b)))
            for a, b in self.work.calls()
        ]

    def empty(self) -> None:
        """A new table."""
        self._table = make_table(self.work, self.optimizer)

    def insert(self, call: int) -> Any:
        """One call."""
        return self._table.assign(*self._calls[call])

    def array(self, rows: Any) -> NDArray[np.float32]:
        """Without a copy."""
        return rows.rows_of().numpy()

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """A plain read."""
        ids = self._ids[torch.from_numpy(np.array(numbers))]
        return self._table.lookup(ids).rows_of().numpy()

    def reset(self) -> None:
        """Only rows that updates have touched."""
        for numbers in self._touched.values():
            for part in numbers.split(self.work.call_ids):
                now = self._table.entries(self._ids[part])
                first = {
                    n: torch.full_like(s, self.work.accumulator) for n, s in now.states[0].items()
                }
                rows = torch.from_numpy(self.work.first_rows_of(part.numpy()))
                self._table.restore(dataclasses.replace(now, rows=rows, states=[first]))

    @property
    def table(self) -> HostTable:
        """The table as it is now."""
        return self._table


if __name__ == "__main__":
    serve(Ours)
