"""Our side of the benchmark over ranks: `hr.models.DLRM` through `hr.distribute`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import native
from ..core.id_batch import IdBatch
from ..nn.distribute import distribute
from ..nn.routers import routers_of
from .peers.pair import RANKS, Pair
from .peers.serve import serve
from .peers.workfile import Work
from .train_ours import plain_model


class OurPair(Pair):
    """Takes the real 64-bit ids; rows are on the rank that the hash of their id says."""

    program: ClassVar[tuple[str, str]] = ("hedgerow.bench.a2a_ours", "OurPair")
    packages: ClassVar[tuple[str, ...]] = ("hedgerow", "torch", "numpy")

    def __init__(
        self, work: Work, threads: int, optimizer: str | None, *, rank: int = 0, port: int = 0
    ) -> None:
        super().__init__(work, threads, optimizer, rank=rank, port=port)
        native.set_threads(self.threads)
        self._names = tuple(f"f{table}" for table in range(self.features))
        self._offsets = torch.arange(self.features * self.samples + 1)

    def make_model(self) -> None:
        """A model without rows, over both ranks."""
        self._plain = plain_model(self.work, self._names, self.columns)
        self.over = self._plain.over
        self._model = distribute(self._plain)

    def make_rows(self) -> None:
        """Every id of this rank gets its row."""
        ids, routers = self.work.ids(), routers_of(self._plain, RANKS)
        for table, name in enumerate(self._names):
            rows = self._plain.bags.table(name)
            for start, stop in self.calls(table):
                some = torch.from_numpy(np.array(ids[start:stop]))
                mine = routers[name].owners(some) == self.rank
                rows.assign(some[mine], torch.from_numpy(self.work.first_rows(start, stop))[mine])

    def ids_of(self, batch: NDArray[np.int64]) -> Tensor:
        """Real ids, feature after feature."""
        return torch.from_numpy(self.work.ids()[np.array(batch)]).view(-1)

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """The model's call."""
        return self._model(dense, IdBatch(self._names, ids, self._offsets))

    def own_row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """A plain read of the own shard: rows of the other rank are zeros."""
        ids = torch.from_numpy(self.work.ids()[table * self.table_rows + numbers])
        return self._plain.bags.table(self._names[table]).lookup(ids).rows_of()


if __name__ == "__main__":
    serve(OurPair)
