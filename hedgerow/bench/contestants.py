"""Who takes part: the program of each peer, the environment it needs, and its memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..core.units import format_bytes
from .cases import Stage

_BENCH = Path(__file__).parent
_FIX = "make bench-peers"
_LIBRARIES_BYTES = 500_000_000  # of a process before it has any row
_RESERVE_BYTES = 500_000_000  # left to everyone else on the machine
_OUR_ROWS_FACTOR, _OUR_ROW_BYTES = 1.05, 50  # rows with padding; index, time, room to grow


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A peer that can be started as a process."""

    name: str
    module: str
    path: Path = _BENCH  # the folder that holds the module
    home: str | None = None  # environment below .peers; None: this interpreter
    threads: int | None = None  # None: as many as we
    rows_factor: float = 1.0  # memory over that of the bare rows
    row_bytes: int = 0  # and beside it

    def interpreter(self) -> Path | None:
        """The Python that runs it, if its environment is there."""
        if self.home is None:
            return Path(sys.executable)
        for parent in (Path.cwd(), _BENCH.parents[1]):
            python = parent / ".peers" / self.home / "bin" / "python"
            if python.exists():
                return python
        return None

    def missing(self) -> str | None:
        """Why it cannot start, and the fix; None if it can."""
        if self.interpreter() is not None:
            return None
        return f"no environment .peers/{self.home} here or in the repository; build it: {_FIX}"

    def needed_bytes(self, stage: Stage) -> int:
        """About how much memory it takes for a stage."""
        return _LIBRARIES_BYTES + needed_bytes(stage, self.rows_factor, self.row_bytes)


def needed_bytes(stage: Stage, rows_factor: float, row_bytes: int) -> int:
    """Rows, their optimizer state, and what lies beside them."""
    states = stage.plan.dim if stage.optimizer == "adagrad" else 0
    return int(stage.plan.rows * (4 * stage.plan.dim * rows_factor + 4 * states + row_bytes))


def our_bytes(stage: Stage) -> int:
    """About what our own table takes in a stage."""
    return needed_bytes(stage, _OUR_ROWS_FACTOR, _OUR_ROW_BYTES)


def table_bytes(rows: int, dim: int) -> int:
    """About what a table of ours without optimizer state takes.

    >>> table_bytes(1000, 16)
    117200
    """
    return int(rows * (4 * dim * _OUR_ROWS_FACTOR + _OUR_ROW_BYTES))


def no_room(needed: int, free: int | None) -> str | None:
    """Why so much memory cannot be had; None if it can."""
    if free is None or needed + _RESERVE_BYTES <= free:
        return None
    return f"needs about {format_bytes(needed)} of memory, and {format_bytes(free)} are free"


_HOME = _BENCH.parents[1]  # the folder that holds the package
CONTESTANTS = {
    peer.name: peer
    for peer in (
        Contestant(name="torch.index_select", module="peers.index_select"),
        Contestant(name="nn.Embedding", module="peers.embedding"),
        Contestant(name="nn.Embedding(sparse)", module="peers.sparse_embedding"),
        Contestant(name="dict + tensor", module="peers.dictionary", row_bytes=250),
        Contestant(name="TBE", module="peers.tbe", home="torch"),
        Contestant(name="EBC", module="peers.ebc", home="torch"),
        Contestant(
            name="managed collision", module="peers.managed_collision", home="torch", row_bytes=100
        ),
        Contestant(name="nn.EmbeddingBag(sparse)", module="peers.sparse_bags"),
        Contestant(name="EBC sparse", module="peers.ebc_sparse", home="torch"),
        Contestant(name="EBC fused", module="peers.ebc_fused", home="torch"),
        Contestant(name="EBC row-wise", module="peers.rowwise_ebc", home="torch"),
        Contestant(name="torch all-to-all", module="peers.torch_exchange"),
        Contestant(name="torch all-to-all, unique", module="peers.torch_exchange_unique"),
        *(
            Contestant(name=name, module=f"hedgerow.bench.ps_peers.{file}", path=_HOME)
            for name, file in (
                ("grpcio stream", "grpc_stream"),
                ("grpcio unary", "grpc_unary"),
                ("torch.rpc", "torch_rpc"),
                ("Ray actors", "ray_actors"),
                ("plain sockets", "sockets"),
                ("with CURVE", "ours_curve"),
                ("with the log", "ours_log"),
            )
        ),
        # Its tables have a power of two of slots.
        Contestant(name="TFRA", module="peers.tfra", home="tfra", rows_factor=2.2),
        Contestant(name="gather", module="hedgerow.bench.gather", path=_HOME),
        Contestant(
            name="one thread",
            module="hedgerow.bench.ours",
            path=_HOME,
            threads=1,
            rows_factor=_OUR_ROWS_FACTOR,
            row_bytes=_OUR_ROW_BYTES,
        ),
    )
}
