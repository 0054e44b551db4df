"""Rows on servers as a subject: ids that were split beforehand go out, rows come back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..peers.subject import Subject
from ..peers.workfile import Work

SERVERS = 2


class Asked(Subject):
    """Server i has the rows of ids i modulo 2. A call asks all servers at once; the rows of the
    first, then those of the second, fill one output.

    Only the way there and back is measured, and the table: who removes equal ids, and who lays rows
    in the order of a batch, would do it the same way over any of them.
    """

    def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
        super().__init__(work, threads, optimizer)
        torch.set_num_threads(threads)
        self.stack = ExitStack()

    def fill(self) -> None:
        """Starts the servers, which fill themselves, and connects."""
        raise NotImplementedError

    def ask(self, shares: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """The rows of each share into its part of the output."""
        raise NotImplementedError

    def place(self, access: str) -> None:
        """The ids of each server."""
        self._shares = [shares_of(batch) for batch in self.work.batches(access)]
        self._reused = torch.empty(self.work.batches(access).shape[1] * self.work.dim)

    def lookup(self, batch: int, output: str) -> Tensor:
        """One round trip to every server."""
        shares = self._shares[batch]
        out = self._reused if output == "reused" else torch.empty_like(self._reused)
        self.ask(shares, out.split([len(share) * self.work.dim for share in shares]))
        return out

    def array(self, rows: Tensor) -> NDArray[np.float32]:
        """As it is."""
        return rows.numpy()

    def reset(self) -> None:
        """Nothing was changed."""

    def leave(self) -> None:
        """Ends the servers."""
        self.stack.close()


def shares_of(batch: NDArray[np.int64]) -> list[Tensor]:
    """The ids of each server, in order.

    >>> [share.tolist() for share in shares_of(np.array([4, 3, 2, 5]))]
    [[4, 2], [3, 5]]
    """
    return [torch.from_numpy(batch[batch % SERVERS == i]) for i in range(SERVERS)]
