"""Our side of the training benchmark: `hr.models.DLRM` as a user builds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import native
from ..core.id_batch import IdBatch
from ..models.dlrm import DLRM
from ..tables.initializers import Zeros
from ..tables.optimizers import Adagrad
from ..tables.table import Table
from .peers.serve import serve
from .peers.training import HIDDEN, Training
from .peers.workfile import Work


def plain_model(work: Work, names: Sequence[str], columns: int) -> DLRM:
    """The model as a user builds it, without rows; its optimizer is what the work says."""
    adagrad = Adagrad(lr=work.rate, initial_accumulator_value=work.accumulator, eps=work.eps)
    return DLRM(
        [Table(name, work.dim) for name in names],
        dense=columns,
        bottom=(HIDDEN,),
        top=(),
        init=Zeros(),
        optimizer=adagrad,
    )


class OurTraining(Training):
    """Takes the real 64-bit ids; the batch of ids is made in the step, as TorchRec's is."""

    packages: ClassVar[tuple[str, ...]] = ("hedgerow", "torch", "numpy")

    def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
        super().__init__(work, threads, optimizer)
        native.set_threads(threads)
        self._names = tuple(f"f{table}" for table in range(self.features))
        self._offsets = torch.arange(self.features * self.samples + 1)

    def make_model(self) -> None:
        """A model without rows."""
        self.model = plain_model(self.work, self._names, self.columns)
        self.over = self.model.over

    def make_rows(self) -> None:
        """Every id gets its row."""
        ids = self.work.ids()
        for table, name in enumerate(self._names):
            rows = self.model.bags.table(name)
            for start, stop in self.calls(table):
                first = torch.from_numpy(self.work.first_rows(start, stop))
                rows.assign(torch.from_numpy(np.array(ids[start:stop])), first)

    def reset(self) -> None:
        """The same model from the start."""
        if self.steps:
            for name in self.model.bags.store.names:
                self.model.bags.table(name).clear()  # before the next takes as much memory
            self.fill()

    def ids_of(self, batch: NDArray[np.int64]) -> Tensor:
        """Real ids."""
        return torch.from_numpy(self.work.ids()[np.array(batch)])

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """The model's call."""
        return self.model(dense, IdBatch(self._names, ids, self._offsets))

    def row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """A plain read."""
        ids = torch.from_numpy(self.work.ids()[table * self.table_rows + numbers])
        return self.model.bags.table(self._names[table]).lookup(ids).rows_of()


if __name__ == "__main__":
    serve(OurTraining)
