"""Common to the peers over torch: threads, batches of row numbers, results as arrays."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .subject import Subject
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
