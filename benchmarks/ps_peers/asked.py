"""Rows on servers as a subject: the servers with their rows, and a client that asks all of them."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hedgerow.core.errors import LaunchError
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Sgd

from .. import CHECKOUT
from ..peers.subject import Subject
from ..peers.workfile import Work

SERVER = "server"  # the first argument of a module that is to be a server
_START_S = 120.0


def servers_of(module: str, work: Work) -> list[list[str]]:
    """The servers of a peer whose module is client and server."""
    folder, count = str(work.folder), str(SERVERS)
    return [[module, SERVER, folder, str(i), count] for i in range(SERVERS)]


@contextmanager
def started(commands: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Processes of `python -m ...`, all at once, and the line that each says when it is ready."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", *command],
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=CHECKOUT,
                )
            )
        yield [_first_line(process) for process in processes]
    finally:
        for process in processes:
            process.kill()  # it has nothing to save
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    line = process.stdout.readline().strip() if ready else ""
    if not line:
        raise LaunchError(f"a server said nothing within {_START_S:g} s: {process.args}.")
    return line


TABLE = "rows"


def config_of(dim: int) -> TableConfig:
    """The table of Monolith's benchmark: SGD of rate 1, zeros."""
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
