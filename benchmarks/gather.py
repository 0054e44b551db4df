"""A plain prefetching gather by row number, in our own C++, on memory like the table's."""

from __future__ import annotations

import mmap
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hedgerow import native
from hedgerow.core import checks
from hedgerow.core.errors import InputError

from .peers.subject import serve
from .peers.torch_tables import TorchRows
from .peers.workfile import Work


def on_huge_pages(rows: int, dim: int) -> Tensor:
    """Zeros [rows, dim] on 2 MiB pages where the system grants them, as the rows of a table are.

    >>> on_huge_pages(3, 2).shape
    torch.Size([3, 2])
    """
    # Private memory: Python's default is shared, which has rules of its own for large pages.
    block = mmap.mmap(-1, max(1, 4 * rows * dim), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=torch.float32, count=rows * dim).view(rows, dim)


class Gather(TorchRows):
    """Timed: `native.gather` into the same output each time."""

    packages: ClassVar[tuple[str, ...]] = ("hedgerow",)

    def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
        super().__init__(work, threads, optimizer)
        native.set_threads(threads)

    def fill(self) -> None:
        """Rows by number."""
        self.weight = on_huge_pages(self.work.rows, self.work.dim)
        self.copy_first_rows(self.weight)

    def place(self, access: str) -> None:
        """Checked here, once: the gather itself checks nothing."""
        super().place(access)
        for numbers in self.batches:
            check_numbers(numbers, len(self.weight))
        self._out = torch.zeros(len(self.batches[0]), self.work.dim)

    def lookup(self, batch: int, output: str) -> Tensor:
        """Reused output only."""
        numbers = self.batches[batch]
        native.gather(
            self.weight.data_ptr(),
            numbers.data_ptr(),
            len(numbers),
            self.work.dim,
            self._out.data_ptr(),
        )
        return self._out

    def array(self, rows: Tensor) -> NDArray[np.float32]:
        """Without a copy."""
        return rows.numpy()


def check_numbers(numbers: Tensor, rows: int) -> None:
    """Row numbers that a table of `rows` rows has.

    >>> check_numbers(torch.tensor([0, 4]), 5)
    """
    checks.tensor("numbers", numbers, torch.int64, (None,))
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < rows:
        raise InputError(
            f"numbers lie in {int(numbers.min())}..{int(numbers.max())}; "
            f"there are rows 0..{rows - 1}."
        )


if __name__ == "__main__":
    serve(Gather)
