"""The rows of one server of a benchmark: our table, filled from the work by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...tables.config import Segment, TableConfig
from ...tables.host import HostTable
from ...tables.initializers import Zeros
from ...tables.optimizers import Sgd
from ..peers.workfile import Work

TABLE = "rows"


def config_of(dim: int) -> TableConfig:
    """The table of the original's benchmark: SGD of rate 1, zeros."""
    return TableConfig(TABLE, (Segment(dim, Zeros(), Sgd(lr=1.0)),))


class ShardRows:
    """What a server of any kind does with the bytes of a request."""

    def __init__(self, folder: Path, server: int, servers: int) -> None:
        work = Work.read(folder)
        torch.set_num_threads(1)
        self.dim = work.dim
        self._table = HostTable(config_of(work.dim))
        for start, stop in work.calls():
            numbers = np.arange(start, stop)
            mine = numbers[numbers % servers == server]
            self._table.assign(torch.from_numpy(mine), torch.from_numpy(work.first_rows_of(mine)))

    def lookup(self, ids: Tensor) -> Tensor:
        """Rows of ids, flat."""
        return self._table.lookup(ids).rows

    def lookup_bytes(self, ids: bytes | bytearray | memoryview) -> memoryview:
        """The same, from and to bytes, without a copy."""
        keys = torch.frombuffer(ids, dtype=torch.int64)
        return memoryview(self.lookup(keys).numpy()).cast("B")  # pyright: ignore[reportArgumentType]
